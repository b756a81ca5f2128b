from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["Engine", "load_model"])
def test_missing_torch_names_the_extra(name: str) -> None:
    program = (
        "import sys\nsys.modules['torch'] = None\nimport kvtrace.engine as engine, kvtrace.engine.policy\n"
        f"engine.EngineConfig(4, 4), engine.Sampling()\ntry:\n    engine.{name}\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'kvtrace[engine]'" in done.stdout


def test_public_names_resolve() -> None:
    import kvtrace.engine as package

    assert sorted(package.__all__) == package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018
