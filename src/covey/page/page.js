(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set();
  /* Newer versions of plotly offer to upload a chart by default; nothing leaves this page. */
  const config = {
    responsive: true,
    displaylogo: false,
    showSendToCloud: false,
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };

  /* Colours stand in the data as var(--name); the style of the page knows what they are now. */
  function coloured(value, style) {
    if (typeof value === "string") {
      const name = /^var\((--[a-z0-9-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
    return value;
  }

  function layoutOf(chart, style) {
    const colour = (name) => style.getPropertyValue(name).trim();
    const ground = colour(document.body.classList.contains("printing") ? "--page" : "--card");
    const spike = { showspikes: true, spikecolor: colour("--quiet"), spikethickness: 1, spikedash: "solid" };
    const layout = {
      showlegend: false,
      autosize: true,
      paper_bgcolor: ground,
      plot_bgcolor: ground,
      margin: { l: 62, r: 18, t: 14, b: 52 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--ink") },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--quiet"), activecolor: colour("--ink") },
      hoverlabel: { bgcolor: colour("--page"), bordercolor: colour("--rule"), font: { color: colour("--ink"), size: 13 } },
      ...coloured(chart.layout, style),
    };
    for (const name of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
      layout[name] = {
        gridcolor: colour("--grid"),
        zerolinecolor: colour("--grid"),
        linecolor: colour("--rule"),
        tickcolor: colour("--rule"),
        ...(name.startsWith("x") && layout.hovermode === "x unified" ? spike : {}),
        ...layout[name],
      };
      layout[name].title = { standoff: 10, font: { size: 13, color: colour("--quiet") }, ...layout[name].title };
    }
    return layout;
  }

  function traceOf(trace, style) {
    const line = /^line-(\d+)$/.exec(trace.legendgroup || "");
    const shown = { ...coloured(trace, style), visible: !(line && hidden.has(line[1])) };
    if (shown.colorbar) {
      shown.colorbar = { outlinewidth: 0, tickfont: { size: 12 }, ...shown.colorbar };
      shown.colorbar.title = { font: { size: 13, color: style.getPropertyValue("--quiet").trim() }, ...shown.colorbar.title };
    }
    return shown;
  }

  function draw() {
    if (!window.Plotly) return;
    const style = getComputedStyle(root);
    charts.forEach((chart, number) => {
      const place = document.getElementById(`chart-${number}`);
      const data = chart.data.map((trace) => traceOf(trace, style));
      Plotly.react(place, data, layoutOf(chart, style), config);
    });
  }

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches;
  }

  function themed(theme) {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Show the page in ${isDark() ? "light" : "dark"} colours`);
    draw();
  }

  button.hidden = false;
  button.addEventListener("click", () => themed(isDark() ? "light" : "dark"));
  systemIsDark.addEventListener("change", () => themed(root.dataset.theme));

  for (const entry of document.querySelectorAll(".legend button")) {
    entry.addEventListener("click", () => {
      const line = entry.dataset.line;
      if (!hidden.delete(line)) hidden.add(line);
      for (const twin of document.querySelectorAll(`.legend button[data-line="${line}"]`))
        twin.setAttribute("aria-pressed", String(!hidden.has(line)));
      draw();
    });
  }

  /* Paper is white and as wide as a sheet, and nobody can open a fold on it. */
  let before = null;
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, folds: [...document.querySelectorAll("details:not([open])")] };
    before.folds.forEach((fold) => (fold.open = true));
    document.body.classList.add("printing");
    themed("light");
  });
  addEventListener("afterprint", () => {
    before.folds.forEach((fold) => (fold.open = false));
    document.body.classList.remove("printing");
    themed(before.theme);
  });

  themed(root.dataset.theme);
  runPacked(document.getElementById("plotly")).then(
    () => {
      draw();
      root.dataset.charts = "drawn";
    },
    () => {
      document.getElementById("undrawn").hidden = charts.length === 0;
      root.dataset.charts = "undrawn";
    },
  );
})();
