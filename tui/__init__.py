"""The command line and, later, the terminal screens. Only this folder imports click, rich screens and textual."""
