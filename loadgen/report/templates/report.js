// Draws each chart when it comes into view, in the colours of the page, and again when those change.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll("[data-plot]")];
  const drawn = new Set();
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function layoutOf(figure) {
    const layout = structuredClone(figure.layout);
    const [ink, soft, line, grid, card] = ["--ink", "--soft", "--line", "--grid", "--card"].map(colour);
    Object.assign(layout, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: soft },
      hoverlabel: { bgcolor: card, bordercolor: line, font: { color: ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink },
    });
    for (const key of Object.keys(layout).filter((name) => /^[xy]axis/.test(name))) {
      Object.assign(layout[key], { gridcolor: grid, zerolinecolor: line, linecolor: line });
    }
    for (const shape of layout.shapes ?? []) {
      shape.fillcolor = colour("--shade");
      if (shape.type === "line") shape.line.color = colour("--accent");
    }
    return layout;
  }

  function draw(plot) {
    const figure = figures[plot.dataset.plot];
    if (!figure) return;
    (drawn.has(plot) ? Plotly.react : Plotly.newPlot)(plot, figure.data, layoutOf(figure), config);
    drawn.add(plot);
  }

  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((each) => each.isIntersecting)) {
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "400px" },
  );
  plots.forEach((plot) => watcher.observe(plot));

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));

  // A link to a stage that is folded opens it.
  function unfold() {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    const details = target && target.querySelector(":scope > details");
    if (details) details.open = true;
  }
  addEventListener("hashchange", unfold);
  unfold();

  // On paper: light, unfolded, every chart drawn and as wide as a page.
  const paperWidth = 660;
  let folded = [];
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((details) => { details.open = true; });
    plots.forEach((plot) => { draw(plot); Plotly.relayout(plot, { width: paperWidth }); });
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.theme;
    folded.forEach((details) => { details.open = false; });
    drawn.forEach((plot) => { draw(plot); Plotly.relayout(plot, { width: null, autosize: true }); });
  });
})();
