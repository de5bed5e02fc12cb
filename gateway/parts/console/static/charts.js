// Draw the charts over time again with uPlot: the values under the pointer, and a drag that looks closer.
(() => {
  const { zone, local } = clockOfBrowser;
  const duration = (ms) => (ms == null ? "–" : ms < 1000 ? `${+ms.toPrecision(3)} ms` : `${+(ms / 1000).toPrecision(3)} s`);

  const draw = (figure) => {
    const { at, series, limits, marks, from, to } = JSON.parse(figure.dataset.chart);
    const names = Object.keys(series);
    const colour = (name) => getComputedStyle(figure).getPropertyValue(`--${name}`).trim();
    const muted = colour("muted");
    const line = (chart, x1, y1, x2, y2, name, dashes) => {
      const { ctx } = chart;
      ctx.save();
      ctx.strokeStyle = colour(name);
      ctx.setLineDash(dashes.map((dash) => dash * devicePixelRatio));
      ctx.beginPath();
      ctx.moveTo(x1, y1);
      ctx.lineTo(x2, y2);
      ctx.stroke();
      ctx.restore();
    };
    const across = (chart) => {
      const { left, top, width, height } = chart.bbox;
      for (const [name, limit] of Object.entries(limits)) {
        const y = chart.valToPos(limit, "y", true);
        if (y >= top) line(chart, left, y, left + width, y, name, [5, 4]);
      }
      for (const mark of marks) line(chart, left + mark.at * width, top, left + mark.at * width, top + height, "target", [2, 2]);
    };
    const closer = (chart) => {
      if (chart.select.width < 4) return;
      const ends = [chart.select.left, chart.select.left + chart.select.width].map((x) => Math.round(chart.posToVal(x, "x") * 1000));
      const query = new URLSearchParams(location.search);
      query.delete("since");
      query.set("from", ends[0]);
      query.set("to", Math.max(ends[1], ends[0] + 1));
      location.search = query;
    };
    // A line needs two times: one alone is a point, or the chart looks empty.
    const lone = names.every((name) => series[name].filter((ms) => ms != null).length === 1);
    const axis = { stroke: muted, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const chart = new uPlot(
      {
        width: figure.clientWidth,
        height: 210,
        scales: { x: { range: [from, to] }, y: { range: (_, __, most) => [0, Math.max(most || 1, 1) * 1.08] } },
        cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
        series: [
          { label: zone, value: (_, seconds) => (seconds == null ? "–" : local(seconds * 1000, "clock")) },
          ...names.map((name) => ({ label: name, stroke: colour(name), width: 1.5, points: { show: lone, size: 5 }, value: (_, ms) => duration(ms) })),
        ],
        axes: [
          { ...axis, values: (_, ticks) => ticks.map((seconds) => local(seconds * 1000, "minute")) },
          { ...axis, size: 62, values: (_, ticks) => ticks.map(duration) },
        ],
        hooks: { draw: [across], setSelect: [closer] },
      },
      [at, ...names.map((name) => series[name])],
      figure,
    );
    figure.querySelector("[data-plain]").hidden = true;
    return chart;
  };

  const charts = [...document.querySelectorAll("[data-chart]")].map((figure) => ({ figure, chart: draw(figure) }));
  for (const note of document.querySelectorAll("[data-scripted]")) note.hidden = false;
  addEventListener("resize", () => charts.forEach(({ figure, chart }) => chart.setSize({ width: figure.clientWidth, height: 210 })));
  // The colours of a canvas do not follow the theme by themselves.
  new MutationObserver(() => {
    for (const one of charts) {
      one.chart.destroy();
      one.chart = draw(one.figure);
    }
  }).observe(document.documentElement, { attributeFilter: ["data-theme"] });
})();
