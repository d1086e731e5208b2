"use strict";
(() => {
  const main = document.getElementById("main");
  const at = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";

  /* Light or dark: the system's choice, or the reader's, kept for the next page. */
  const theme = at("theme");
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const kept = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
                 set: (value) => { try { localStorage.setItem("theme", value); } catch { /* private */ } } };
  const isDark = () => document.documentElement.dataset.theme === "dark" ||
    (!document.documentElement.dataset.theme && systemIsDark.matches);
  function themed(choice) {
    if (choice) document.documentElement.dataset.theme = choice;
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Show the page in ${isDark() ? "light" : "dark"} colours`);
  }
  theme.hidden = false;
  theme.addEventListener("click", () => { const next = isDark() ? "light" : "dark"; kept.set(next); themed(next); });
  systemIsDark.addEventListener("change", () => themed());
  themed(kept.get());

  /* Drawing: text and shapes with classes alone, so that the style decides on colours. */
  function shape(parent, name, values, text) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(values || {})) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  }
  function canvas(place, height) {
    const width = Math.max(260, place.clientWidth || 260);
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.setAttribute("aria-hidden", "true");
    place.replaceChildren(svg);
    return [svg, width];
  }
  const percent = (value) => (value === null || value === undefined ? "-" : `${(100 * value).toFixed(1)} %`);
  /* The main metric of a record: accuracy, or that of another task, which comes with its label. */
  const scoreOf = (row) => (row.accuracy === undefined ? row.score : row.accuracy);
  const labelOf = (row) => (row && row.label) || "accuracy";
  const isShare = (row) => !row || row.share !== false;
  const scoreText = (row) => (isShare(row) ? percent(scoreOf(row)) : Number(scoreOf(row).toPrecision(4)).toString());
  function nice(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((one) => one * power >= rough) * power;
    const ticks = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + step / 1e6; tick += step) ticks.push(tick);
    return [ticks, Math.max(0, -Math.floor(Math.log10(step)))];
  }
  /* A line has at most so many points on the screen; of more, every n-th is drawn, and the last. */
  function thinned(points) {
    const every = Math.ceil(points.length / 600);
    return every < 2 ? points : points.filter((_, number) => number % every === 0 || number === points.length - 1);
  }
  function curves(place, lines, scale, alt) {
    const [svg, width] = canvas(place, 230);
    const points = lines.flatMap((line) => line.points);
    place.setAttribute("aria-label", alt);
    if (!points.length) { shape(svg, "text", { x: 12, y: 40 }, "Nothing yet."); return; }
    const values = points.map((point) => point[1] * scale);
    const last = Math.max(...points.map((point) => point[0]));
    let low = Math.min(...values), high = Math.max(...values);
    /* A difference of less than a hundredth of the value must not fill the figure. */
    const margin = Math.max((high - low) * 0.06, (0.02 * Math.max(1e-6, Math.abs(high)) - (high - low)) / 2);
    low -= margin; high += margin;
    const left = 52, right = width - 12, top = 10, bottom = 196;
    const x = (t) => (last < 2 ? (left + right) / 2 : left + ((t - 1) / (last - 1)) * (right - left));
    const y = (value) => bottom - ((value * scale - low) / (high - low)) * (bottom - top);
    const [ticks, digits] = nice(low, high, 5);
    for (const tick of ticks) {
      const height = bottom - ((tick - low) / (high - low)) * (bottom - top);
      shape(svg, "line", { x1: left, x2: right, y1: height, y2: height, class: "grid" });
      shape(svg, "text", { x: left - 8, y: height + 4, "text-anchor": "end" }, `${tick.toFixed(digits)}${scale === 100 ? " %" : ""}`);
    }
    for (const tick of last < 2 ? [1] : nice(1, last, Math.min(6, last - 1))[0].filter((one) => Number.isInteger(one)))
      shape(svg, "text", { x: x(tick), y: bottom + 18, "text-anchor": "middle" }, tick);
    shape(svg, "text", { x: right, y: bottom + 32, "text-anchor": "end" }, "round");
    for (const line of lines) {
      const kind = `s${line.place % 6}${line.dashed ? " dashed" : ""}`;
      if (line.points.length === 1)
        shape(svg, "circle", { cx: x(line.points[0][0]), cy: y(line.points[0][1]), r: 3.5, class: `f${line.place % 6}` });
      else shape(svg, "polyline", { class: kind, points: thinned(line.points).map(([t, value]) => `${x(t).toFixed(1)},${y(value).toFixed(1)}`).join(" ") });
    }
  }
  function bars(place, names, series, alt, whole) {
    const row = series.length > 1 ? 24 : 21;
    const shown = Math.min(names.length, 40);
    const [svg, width] = canvas(place, Math.max(60, shown * row + 12));
    place.setAttribute("aria-label", alt);
    if (!shown) { shape(svg, "text", { x: 12, y: 40 }, "Nothing yet."); return; }
    const left = Math.min(130, 14 + 8 * Math.max(...names.slice(0, shown).map((name) => String(name).length)));
    const room = width - left - 64;
    const most = whole || Math.max(1e-9, ...series.flatMap((one) => one.values.map((value) => value || 0)));
    for (let number = 0; number < shown; number += 1) {
      const y = 8 + number * row;
      shape(svg, "text", { x: left - 8, y: y + 12, "text-anchor": "end" }, String(names[number]).slice(0, 16));
      for (const one of series) {
        const value = one.values[number];
        const wide = Math.max(0, ((value || 0) / most) * room);
        if (one.hollow) shape(svg, "rect", { x: left, y: y - 1, width: wide, height: 17, class: "hollow" });
        else {
          shape(svg, "rect", { x: left, y, width: wide, height: 15, class: `f${one.place || 0}` });
          shape(svg, "text", { x: left + room + 58, y: y + 12, "text-anchor": "end", class: "ink" }, percent(value));
        }
      }
    }
  }

  /* The live page. */
  function live() {
    const runs = new Map();
    const federations = new Map();
    let state = { state: main.dataset.state };
    let drawing = false;
    const focus = at("focus");
    const runOf = (label) => {
      if (!runs.has(label)) {
        runs.set(label, { label, path: main.dataset.path, place: runs.size, rows: [], invited: new Map(), faults: new Map(), names: [], up: 0, down: 0, last: 0 });
        const option = document.createElement("option");
        option.value = label;
        option.textContent = label || main.dataset.path;
        focus.appendChild(option);
        at("focus-line").hidden = runs.size < 2;
      }
      return runs.get(label);
    };
    const soon = () => { if (!drawing) { drawing = true; requestAnimationFrame(() => { drawing = false; draw(); }); } };

    function added(record) {
      const run = runOf(record.run);
      if (record.round <= run.last) return;
      run.last = record.round;
      record.main = scoreOf(record);
      run.rows.push(record);
      run.up += record.bytes_up || 0;
      run.down += record.bytes_down || 0;
      for (const client of record.clients || []) run.invited.set(client, (run.invited.get(client) || 0) + 1);
      for (const fault of [...(record.dropped || []), ...(record.unmeasured || [])]) {
        const before = run.faults.get(fault.client);
        run.faults.set(fault.client, { count: (before ? before.count : 0) + 1, round: record.round, reason: fault.reason });
      }
      soon();
    }
    const size = (count) => {
      for (const unit of ["B", "kB", "MB", "GB"]) {
        if (count < 1000) return `${unit === "B" ? count : count.toFixed(1)}\u00a0${unit}`;
        count /= 1000;
      }
      return `${count.toFixed(1)}\u00a0TB`;
    };
    const spent = (row) => Object.values(row.seconds || {}).reduce((sum, value) => sum + value, 0);
    function time(seconds) {
      if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
      if (seconds >= 60) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
      if (seconds > 0 && seconds < 0.1) return `${Math.max(1, Math.round(1000 * seconds))} ms`;
      return `${seconds >= 10 ? Math.round(seconds) : seconds.toFixed(1)} s`;
    }
    function draw() {
      const all = [...runs.values()];
      const run = runs.get(focus.value) || all[0];
      if (!run || !run.rows.length) return;
      const last = run.rows[run.rows.length - 1];
      const points = (one, field) => one.rows.filter((row) => row[field] !== null && row[field] !== undefined).map((row) => [row.round, row[field]]);
      const lastScored = (one) => [...one.rows].reverse().find((row) => row.main !== null && row.main !== undefined);
      const scored = lastScored(run);
      const name = labelOf(scored), Name = name[0].toUpperCase() + name.slice(1);
      const ends = all.map((one) => { const found = lastScored(one); return found ? `${one.label || name} ${scoreText(found)} after round ${found.round}` : ""; });
      curves(at("accuracy-chart"), all.map((one) => ({ place: one.place, points: points(one, "main") })), isShare(scored) ? 100 : 1, `${Name}${isShare(scored) ? " in percent" : ""} by round: ${ends.filter(Boolean).join(", ") || "nothing yet"}`);
      const losses = [...all.map((one) => ({ place: one.place, points: points(one, "loss") })), ...all.map((one) => ({ place: one.place, dashed: true, points: points(one, "train_loss") }))];
      curves(at("loss-chart"), losses, 1, `Loss by round: ${scored && scored.loss ? scored.loss.toPrecision(3) : "-"} at the last evaluation`);
      const world = federations.get(run.path);
      const classes = [...run.rows].reverse().find((row) => row.class_accuracy);
      const by = classes ? classes.class_accuracy : [];
      bars(at("class-chart"), by.map((_, number) => (world && world.class_names[number]) || String(number)), [{ values: by, place: run.place % 6 }], by.length ? `Accuracy by class after round ${classes.round}: from ${percent(Math.min(...by))} to ${percent(Math.max(...by))}` : "Accuracy by class: not in the records", 1);
      mix(run, last, world);
      taking(run, last, world);
      phases(run);
      /* A task without classes has neither of these. */
      at("class-chart-figure").hidden = at("mix-chart-figure").hidden = Boolean(scored) && !classes;
      at("round").closest("div").querySelector("dt").textContent = all.length > 1 ? "rounds, of all runs" : "round";
      at("round").textContent = state.rounds ? `${(state.done = Math.max(state.done || 0, all.reduce((sum, one) => sum + one.last, 0))).toLocaleString("en")} of ${state.rounds.toLocaleString("en")}` : String(run.last);
      at("progress").value = state.done || run.last;
      if (state.rounds) at("progress").max = state.rounds;
      if (scored) {
        at("accuracy").textContent = scoreText(scored);
        at("accuracy").closest("div").querySelector("dt").textContent = all.length > 1 ? `${name} of ${run.label}` : name;
        at("accuracy-chart-figure").querySelector("h2").textContent = Name;
      }
      at("bytes").textContent = `${size(all.reduce((sum, one) => sum + one.up, 0))} / ${size(all.reduce((sum, one) => sum + one.down, 0))}`;
      const recent = run.rows.slice(-10);
      const mean = recent.reduce((sum, row) => sum + spent(row), 0) / recent.length;
      at("seconds").textContent = time(mean);
      at("left").textContent = state.state === "running" && state.rounds ? time(mean * Math.max(0, state.rounds - state.done)) : "-";
      faults(run);
      legend(all);
      if (main.dataset.round === String(last.round)) return;
      main.dataset.round = String(last.round);
      main.dataset.drawn = String(performance.timeOrigin + performance.now());
    }
    function legend(all) {
      const list = at("legend");
      if (all.length < 2 || list.children.length === all.length) return;
      list.replaceChildren(...all.map((one) => {
        const item = document.createElement("li");
        const svg = document.createElementNS(SVG, "svg");
        svg.setAttribute("class", "swatch");
        svg.setAttribute("aria-hidden", "true");
        shape(svg, "line", { x1: 0, y1: 7, x2: 26, y2: 7, "stroke-width": 3, class: `s${one.place % 6}` });
        item.append(svg, document.createTextNode(one.label));
        return item;
      }));
    }
    function mix(run, last, world) {
      const place = at("mix-chart");
      if (!world || !world.shares.length) {
        if (world) place.textContent = `Not known. ${world.reason || "There are too many clients."}`;
        return;
      }
      const sum = (clients) => {
        const total = world.class_names.map(() => 0);
        let count = 0;
        for (const client of clients) {
          const weight = world.sizes[client];
          if (weight === undefined) return total;
          count += weight;
          world.shares[client].forEach((share, number) => { total[number] += share * weight; });
        }
        return total.map((value) => value / Math.max(1, count));
      };
      const cohort = sum(last.clients || []), everyone = sum(world.sizes.keys());
      const most = cohort.indexOf(Math.max(...cohort));
      bars(place, world.class_names, [{ values: cohort, place: run.place % 6 }, { values: everyone, hollow: true }], `Class mix of the cohort of round ${last.round}: most of class ${world.class_names[most]}, ${percent(cohort[most])}`);
    }
    function taking(run, last, world) {
      const seen = [...run.invited.keys()];
      const count = Math.min(3000, Math.max(world ? world.sizes.length : 0, 1 + Math.max(-1, ...seen)));
      const width = Math.max(260, at("part-chart").clientWidth || 260);
      const cell = count > 800 ? 10 : 18;
      const across = Math.floor(width / cell);
      const [svg] = canvas(at("part-chart"), Math.max(60, Math.ceil(count / across) * cell + 4));
      const most = Math.max(1, ...run.invited.values());
      const now = new Set(last.clients || []);
      for (let client = 0; client < count; client += 1) {
        const times = run.invited.get(client) || 0;
        const box = shape(svg, "rect", { x: (client % across) * cell + 2, y: Math.floor(client / across) * cell + 2, width: cell - 4, height: cell - 4, class: `k${times ? Math.ceil((4 * times) / most) : 0}${now.has(client) ? " outlined" : ""}` });
        shape(box, "title", {}, `${run.names[client] || `client ${client}`}: ${times} times`);
      }
      at("part-chart").setAttribute("aria-label", `Who takes part: ${seen.length} clients so far, ${now.size} in round ${last.round}`);
    }
    function phases(run) {
      const place = at("time-chart");
      const rows = run.rows.slice(-60);
      const narrow = place.clientWidth < 420;
      const [svg, width] = canvas(place, narrow ? 174 : 152);
      const names = ["selection", "clients", "aggregation", "evaluation"];
      const most = Math.max(1e-9, ...rows.map(spent));
      const left = 64, wide = (width - left - 6) / Math.max(24, rows.length);
      for (const [y, text] of [[15, time(most)], [120, "0 s"]]) {
        shape(svg, "line", { x1: left, x2: width - 6, y1: y, y2: y, class: "grid" });
        shape(svg, "text", { x: left - 8, y: y + 4, "text-anchor": "end" }, text);
      }
      rows.forEach((row, number) => {
        let y = 120;
        names.forEach((name, kind) => {
          const height = (((row.seconds || {})[name] || 0) / most) * 105;
          y -= height;
          shape(svg, "rect", { x: left + number * wide, y, width: Math.max(1, wide - 2), height, class: `p${kind}` });
        });
      });
      names.forEach((name, kind) => {
        const x = (narrow ? 6 : left) + (narrow ? (kind % 2) * (width / 2) : kind * ((width - left) / 4));
        const y = 134 + (narrow && kind > 1 ? 22 : 0);
        shape(svg, "rect", { x, y, width: 12, height: 12, class: `p${kind}` });
        shape(svg, "text", { x: x + 16, y: y + 11 }, name);
      });
      place.setAttribute("aria-label", `Seconds of a round by phase: ${time(spent(rows[rows.length - 1]))} in the last round`);
    }
    function faults(run) {
      const body = at("faults").tBodies[0];
      const rows = [...run.faults.entries()].sort((one, other) => other[1].count - one[1].count).slice(0, 50);
      if (!rows.length) return;
      body.replaceChildren(...rows.map(([client, fault]) => {
        const row = document.createElement("tr");
        for (const text of [run.names[client] || `client ${client}`, fault.count, fault.round, fault.reason]) {
          const cell = document.createElement("td");
          cell.textContent = String(text);
          row.appendChild(cell);
        }
        return row;
      }));
    }
    function stated(found) {
      state = { ...found, done: Math.max(found.done, state.done || 0) };
      const marks = { running: "▶", finished: "✓", done: "✓", damaged: "!", failed: "!", waiting: "…" };
      const badge = document.createElement("span");
      badge.className = `badge ${state.state}`;
      badge.textContent = `${marks[state.state] || "■"} ${state.state}`;
      at("state").replaceChildren(badge);
      at("stop").hidden = !["running", "waiting"].includes(state.state);
      at("resume").hidden = ["running", "waiting", "finished", "removed"].includes(state.state);
      at("error").hidden = !state.error;
      at("error").textContent = state.error || "";
      main.dataset.state = state.state;
      if (main.dataset.known === "false" && state.done > 0) complete();
      soon();
    }
    /* A page that was opened before the first round lacks what was not known yet. */
    async function complete() {
      main.dataset.known = "true";
      try {
        const fresh = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
        const lead = fresh.querySelector(".lead");
        if (lead && !document.querySelector(".lead")) document.querySelector("header").append(lead);
        at("actions").replaceWith(fresh.getElementById("actions"));
        const members = fresh.getElementById("members");
        if (members && !at("members")) main.append(members.parentElement);
      } catch { main.dataset.known = "false"; }
    }
    async function known(run) {
      if (federations.has(run.path)) return;
      federations.set(run.path, null);
      try {
        const answer = await fetch(`/runs/${run.path.split("/").map(encodeURIComponent).join("/")}/federation`);
        const world = answer.ok ? await answer.json() : null;
        federations.set(run.path, world);
        if (!world || world.pending) askAgain(run);
      } catch { askAgain(run); }
      soon();
    }
    /* The page goes on without, and asks once more while somebody looks at this run. */
    function askAgain(run) {
      setTimeout(() => {
        federations.delete(run.path);
        if (focus.value === run.label) known(run);
      }, 10000);
    }
    const source = new EventSource(main.dataset.events);
    source.addEventListener("member", (event) => {
      const found = JSON.parse(event.data);
      const run = runOf(found.run);
      run.path = found.path;
      run.names = found.names;
      if (focus.value === found.run) known(run);
    });
    source.addEventListener("round", (event) => added(JSON.parse(event.data)));
    source.addEventListener("state", (event) => stated(JSON.parse(event.data)));
    source.addEventListener("open", () => { at("link").textContent = ""; });
    source.addEventListener("error", () => { at("link").textContent = "The server does not answer; trying again."; });
    focus.addEventListener("change", () => { known(runs.get(focus.value)); soon(); });
    addEventListener("resize", soon);
    addEventListener("pagehide", () => source.close());
  }

  /* Lists: what runs changes while one looks; ticks stay. */
  function list() {
    const ticked = () => {
      const count = document.querySelectorAll("input[name=run]:checked").length;
      if (at("compare-button")) at("compare-button").disabled = count < 2;
      if (at("ticked")) at("ticked").textContent = count ? `${count} ticked` : "";
    };
    /* Rows in the new order, those that are there already with their ticks and buttons. */
    function merged(body, fresh) {
      const known = new Map([...body.rows].map((row) => [row.dataset.run, row]));
      const focused = document.activeElement;
      const rows = [...fresh.rows].map((row) => {
        const old = known.get(row.dataset.run);
        if (!old) return row;
        [...row.cells].forEach((cell, number) => {
          if (!cell.querySelector("input, button") && old.cells[number].innerHTML !== cell.innerHTML)
            old.cells[number].replaceChildren(...cell.childNodes);
        });
        return old;
      });
      if (rows.some((row, number) => row !== body.rows[number]) || rows.length !== body.rows.length) {
        body.replaceChildren(...rows);
        if (body.contains(focused)) focused.focus();
      }
    }
    document.addEventListener("change", ticked);
    ticked();
    if (main.dataset.running !== "true") return;
    setInterval(async () => {
      if (document.hidden) return;
      try {
        const fresh = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
        const queue = (page) => page.querySelector("section[aria-labelledby=waiting]");
        if (queue(fresh) && !queue(document)) main.prepend(queue(fresh));
        else if (!queue(fresh) && queue(document)) queue(document).remove();
        const bodies = (page) => [...page.querySelectorAll("tbody")].filter((body) => body.querySelector("tr[data-run]"));
        const [shown, now] = [bodies(document), bodies(fresh)];
        if (shown.length !== now.length) { location.reload(); return; }
        now.forEach((body, number) => merged(shown[number], body));
        ticked();
      } catch { /* The next time. */ }
    }, 5000);
  }

  /* Forms: the command that the fields stand for. */
  function fresh() {
    const form = at("new");
    const quoted = (text) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
    const spell = () => {
      /* Not form.dataset: a field of that name stands before it. */
      const words = ["covey", form.getAttribute("data-command")];
      for (const field of form.querySelectorAll("[data-flag]")) {
        const flag = field.dataset.flag;
        if (field.type === "checkbox") { if (field.checked) words.push(flag); continue; }
        const lines = field.tagName === "TEXTAREA" ? field.value.split("\n") : [field.value];
        for (const line of lines.map((one) => one.trim()).filter(Boolean)) words.push(...(flag ? [flag] : []), quoted(line));
      }
      at("command").textContent = words.join(" ");
    };
    form.addEventListener("input", spell);
    spell();
  }

  /* Sliders: the nearest mix is asked for while they move. */
  function mixing() {
    const sliders = [...document.querySelectorAll(".slider input")];
    let asked = 0, shown = 0, waiting = null, last = null;
    async function nearest() {
      waiting = null;
      const total = sliders.reduce((sum, one) => sum + Number(one.value), 0);
      at("order").disabled = !total;
      sliders.forEach((one, number) => { at(`share-${number}`).textContent = total ? `${((100 * one.value) / total).toFixed(0)} %` : "0 %"; });
      if (!total) { at("nearest").textContent = "Move a slider."; return; }
      const target = {};
      sliders.forEach((one, number) => { if (Number(one.value)) target[one.dataset.name.includes(",") ? number : one.dataset.name] = one.value / total; });
      const number = (asked += 1);
      const answer = await fetch("/mixes", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ base: main.dataset.base, target }) });
      if (number < shown) return;
      shown = number;
      const found = await answer.json();
      if (!answer.ok) { at("nearest").textContent = found.detail; return; }
      at("nearest").textContent = found.warning ? `${found.clients.length} clients together come nearest. ${found.warning}` : `${found.clients.length} clients together come within ${(50 * found.distance).toFixed(1)} % of it.`;
      last = found;
      main.dataset.distance = String(found.distance);
      drawn();
    }
    function drawn() {
      if (last === null) return;
      const [found, name] = [last, last.class_names];
      const most = found.mix.indexOf(Math.max(...found.mix));
      bars(at("nearest-chart"), name, [{ values: found.mix, place: 0 }, { values: found.target, hollow: true }], `The nearest mix: most of class ${name[most]}, ${percent(found.mix[most])}; what was asked for is outlined`);
    }
    addEventListener("resize", drawn);
    for (const slider of sliders)
      slider.addEventListener("input", () => { if (waiting === null) waiting = setTimeout(nearest, 60); });
    nearest();
  }

  function job() {
    const source = new EventSource(`/jobs/${main.dataset.job}/events`);
    const line = (text) => {
      const item = document.createElement("li");
      item.textContent = text;
      at("events").appendChild(item);
      while (at("events").children.length > 500) at("events").firstChild.remove();
      at("events").scrollTop = at("events").scrollHeight;
    };
    source.addEventListener("state", (event) => { const data = JSON.parse(event.data); line(data.error ? `${data.state}: ${data.error}` : data.state); });
    source.addEventListener("round", (event) => { const data = JSON.parse(event.data); line(`${data.run ? `${data.run}, ` : ""}round ${data.round}${data.accuracy === undefined ? "" : `, accuracy on the test set ${percent(data.accuracy)}`}${typeof data.score === "number" ? `, ${data.metric} ${Number(data.score.toPrecision(4))}` : ""}`); });
    source.addEventListener("end", () => { source.close(); if (main.dataset.over === "false") location.reload(); });
    addEventListener("pagehide", () => source.close());
  }

  ({ live, runs: list, new: fresh, mix: mixing, job }[main.dataset.page] || (() => {}))();
})();
