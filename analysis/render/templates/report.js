"use strict";
(() => {
  const section = document.getElementById("gantt");
  if (!section) return;
  const details = section.querySelector(".details");
  const plot = section.querySelector(".plot");
  const squeeze = document.getElementById("squeeze");
  let current = null;

  const show = (bar) => {
    if (current) current.classList.remove("on");
    current = bar;
    if (!bar) return;
    bar.classList.add("on");
    const lane = bar.closest(".lane").getAttribute("aria-label").split(": b ")[0];
    details.textContent = `${lane}: ${bar.querySelector("title").textContent}`;
  };

  section.addEventListener("pointerover", (event) => {
    const bar = event.target.closest(".lane path");
    if (bar) show(bar);
  });

  const step = (bars, key) => {
    const at = bars.indexOf(current);
    if (key === "Home") return 0;
    if (key === "End") return bars.length - 1;
    return Math.min(bars.length - 1, Math.max(0, at + (key === "ArrowRight" ? 1 : -1)));
  };

  section.addEventListener("keydown", (event) => {
    const lane = event.target.closest(".lane");
    if (!lane || !["ArrowRight", "ArrowLeft", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const bars = [...lane.querySelectorAll("path")];
    show(bars[step(bars, event.key)]);
    const box = current.getBoundingClientRect(), frame = plot.getBoundingClientRect();
    if (box.left < frame.left || box.right > frame.right) plot.scrollLeft += box.left - frame.left - frame.width / 2;
  });

  section.addEventListener("focusin", (event) => {
    const lane = event.target.closest(".lane");
    if (lane) details.textContent = lane.getAttribute("aria-label");
  });

  section.querySelector(".zoom").hidden = false;
  let zoom = 1;
  section.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
    const middle = (plot.scrollLeft + plot.clientWidth / 2) / plot.scrollWidth;
    zoom = Math.min(64, Math.max(1, zoom * Number(button.dataset.zoom)));
    plot.style.setProperty("--zoom", zoom);
    plot.scrollLeft = middle * plot.scrollWidth - plot.clientWidth / 2;
  }));
})();
