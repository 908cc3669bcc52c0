// What a page can do beyond being read: tabs, curves to zoom into, galleries to filter. Everything is there without it.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, attributes = {}, text = "") => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    return element;
  };

  // -- tabs: one panel at a time; the address says which, so that a link can lead into one ------------------------------
  const tabs = () => {
    const list = document.querySelector("nav.tabs");
    if (!list) return;
    const links = [...list.querySelectorAll("a")];
    const panels = links.map((link) => document.getElementById(link.hash.slice(1)));
    document.documentElement.classList.add("scripted");
    list.setAttribute("role", "tablist");
    links.forEach((link, i) => {
      link.id = `${panels[i].id}-name`;
      link.setAttribute("role", "tab");
      link.setAttribute("aria-controls", panels[i].id);
      panels[i].setAttribute("role", "tabpanel");
      panels[i].setAttribute("aria-labelledby", link.id);
    });
    const show = (chosen) => links.forEach((link, i) => {
      link.setAttribute("aria-selected", String(i === chosen));
      link.tabIndex = i === chosen ? 0 : -1;
      panels[i].hidden = i !== chosen;
    });
    const follow = () => {
      const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      const chosen = panels.findIndex((panel) => target && panel.contains(target));
      show(Math.max(chosen, 0));
      if (chosen >= 0 && target !== panels[chosen]) target.scrollIntoView();
    };
    const choose = (i) => {
      history.replaceState(null, "", links[i].hash);
      show(i);
    };
    links.forEach((link, i) => link.addEventListener("click", (event) => {
      event.preventDefault();
      choose(i);
    }));
    list.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (links.indexOf(document.activeElement) + step + links.length) % links.length;
      choose(next);
      links[next].focus();
    });
    addEventListener("hashchange", follow);
    follow();
  };

  // -- curves: the SVG says which values lie at the ends of its axes ----------------------------------------------------
  const numbers = (text) => text.split(" ").map(Number);
  const scale = (ends, log) => {
    const [low, high] = log ? ends.map(Math.log10) : ends;
    return {
      low, high, log,
      at: (share) => low + share * (high - low),
      shown: (value) => (log ? 10 ** value : value),
    };
  };
  const steps = (low, high, log) => { // round values between two ends, in the axis' own units
    if (log && high - low >= 1) {
      const every = Math.max(1, Math.ceil((high - low) / 6)), found = [];
      for (let at = Math.ceil(low); at <= high; at += every) found.push(at);
      return found;
    }
    const [from, to] = log ? [10 ** low, 10 ** high] : [low, high];
    const raw = (to - from) / 5, base = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * base).find((candidate) => candidate >= raw);
    const found = [];
    for (let at = Math.ceil(from / step) * step; at <= to + step / 1e6; at += step) found.push(log ? Math.log10(at) : at);
    return found;
  };
  const written = (value, spread) => {
    if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-4)) return value.toExponential(1);
    const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(spread || 1)) + 1));
    return String(Number(value.toFixed(digits)));
  };

  const zoom = (figure) => {
    const svg = figure.querySelector("svg"), clip = svg.querySelector("clipPath rect");
    const axes = svg.querySelector('[id$="axes_1"]');
    if (!clip || !axes) return;
    const [left, top, width, height] = ["x", "y", "width", "height"].map((name) => Number(clip.getAttribute(name)));
    const logs = (svg.dataset.log || "").split(" ");
    const x = scale(numbers(svg.dataset.x), logs.includes("x")), y = scale(numbers(svg.dataset.y), logs.includes("y"));
    const whole = { x0: 0, x1: 1, y0: 0, y1: 1 }; // shares of the axes, from left and from below
    let view = { ...whole };

    // What is drawn is moved under groups that clip, so that it can be stretched below them.
    const lines = [], marks = [];
    for (const group of [...axes.children].filter((child) => !/axis_\d+$/.test(child.id))) {
      for (const part of [...group.querySelectorAll("[clip-path]")]) {
        if (part.tagName === "g") {
          const uses = [...part.querySelectorAll("use")];
          if (group.id.includes("FillBetween") || group.id.includes("PolyCollection")) lines.push(...uses);
          else marks.push(...uses.map((use) => [use, Number(use.getAttribute("x")), Number(use.getAttribute("y"))]));
        } else {
          const frame = document.createElementNS(SVG, "g");
          frame.setAttribute("clip-path", part.getAttribute("clip-path"));
          part.removeAttribute("clip-path");
          part.replaceWith(frame);
          frame.append(part);
          part.setAttribute("vector-effect", "non-scaling-stroke");
          lines.push(part);
        }
      }
    }
    const ticks = [...axes.querySelectorAll('[id*="xtick_"], [id*="ytick_"]')];
    const own = document.createElementNS(SVG, "g");
    axes.append(own);
    const place = (name, attributes, text = "") => {
      const element = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      element.textContent = text;
      own.append(element);
    };

    const bar = make("div", { class: "zooming" });
    const button = (text, label, act) => {
      const one = make("button", { type: "button", "aria-label": label }, text);
      one.addEventListener("click", act);
      bar.append(one);
      return one;
    };
    const about = (factor) => {
      const middle = (view.x0 + view.x1) / 2, half = Math.min(0.5, ((view.x1 - view.x0) / 2) * factor);
      const start = Math.min(Math.max(0, middle - half), 1 - 2 * half);
      look({ ...view, x0: start, x1: start + 2 * half });
    };
    const pan = (way) => {
      const shift = Math.max(-view.x0, Math.min(1 - view.x1, (way * (view.x1 - view.x0)) / 3));
      look({ ...view, x0: view.x0 + shift, x1: view.x1 + shift });
    };
    button("+", "zoom in", () => about(0.5));
    button("−", "zoom out", () => about(2));
    button("‹", "to the left", () => pan(-1));
    button("›", "to the right", () => pan(1));
    const back = button("all", "show the whole curve", () => look({ ...whole }));
    const said = make("output");
    bar.append(said);
    const hint = "drag over the curve to zoom in";
    said.textContent = hint;
    figure.querySelector("figcaption").before(bar);

    function look(next) {
      if (next.x1 - next.x0 < 1e-4 || next.y1 - next.y0 < 1e-4) return;
      view = next;
      const sx = 1 / (view.x1 - view.x0), sy = 1 / (view.y1 - view.y0);
      const tx = left - sx * (left + view.x0 * width), ty = top - sy * (top + (1 - view.y1) * height);
      for (const line of lines) line.setAttribute("transform", `matrix(${sx} 0 0 ${sy} ${tx} ${ty})`);
      for (const [use, px, py] of marks) {
        use.setAttribute("x", sx * px + tx);
        use.setAttribute("y", sy * py + ty);
      }
      const all = Object.keys(whole).every((key) => view[key] === whole[key]);
      figure.classList.toggle("zoomed", !all);
      back.disabled = all;
      for (const tick of ticks) tick.style.display = all ? "" : "none";
      own.replaceChildren();
      if (all) return;
      const style = { fill: "currentColor", "font-size": "9px", "font-family": "sans-serif" };
      const [xa, xb, ya, yb] = [x.at(view.x0), x.at(view.x1), y.at(view.y0), y.at(view.y1)];
      for (const value of steps(xa, xb, x.log)) {
        const at = left + ((value - xa) / (xb - xa)) * width;
        place("line", { x1: at, x2: at, y1: top + height, y2: top + height + 3.5, stroke: "currentColor", "stroke-width": 0.8 });
        place("text", { ...style, x: at, y: top + height + 13, "text-anchor": "middle" }, written(x.shown(value), xb - xa));
      }
      for (const value of steps(ya, yb, y.log)) {
        const at = top + height - ((value - ya) / (yb - ya)) * height;
        place("line", { x1: left - 3.5, x2: left, y1: at, y2: at, stroke: "currentColor", "stroke-width": 0.8 });
        place("text", { ...style, x: left - 7, y: at + 3, "text-anchor": "end" }, written(y.shown(value), yb - ya));
      }
    }
    look(view);

    const share = (event) => { // where the pointer is, as shares of the axes, in the whole curve
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const across = (point.x - left) / width, up = 1 - (point.y - top) / height;
      return {
        inside: across >= 0 && across <= 1 && up >= 0 && up <= 1,
        x: view.x0 + Math.min(1, Math.max(0, across)) * (view.x1 - view.x0),
        y: view.y0 + Math.min(1, Math.max(0, up)) * (view.y1 - view.y0),
      };
    };
    let from = null, box = null;
    const draw = (to) => {
      const [x0, x1] = [from.x, to.x].sort((a, b) => a - b), [y0, y1] = [from.y, to.y].sort((a, b) => a - b);
      const sx = width / (view.x1 - view.x0), sy = height / (view.y1 - view.y0);
      const at = { x: left + (x0 - view.x0) * sx, y: top + (view.y1 - y1) * sy, width: (x1 - x0) * sx, height: (y1 - y0) * sy };
      for (const [key, value] of Object.entries(at)) box.setAttribute(key, value);
      return { x0, x1, y0, y1, large: at.width > 6 && at.height > 6 };
    };
    svg.addEventListener("pointerdown", (event) => {
      const at = share(event);
      if (!at.inside || event.button !== 0 || event.pointerType === "touch") return;
      event.preventDefault();
      svg.setPointerCapture(event.pointerId);
      from = at;
      box = document.createElementNS(SVG, "rect");
      for (const [key, value] of Object.entries({ fill: "currentColor", "fill-opacity": 0.12, stroke: "currentColor", "stroke-opacity": 0.5 }))
        box.setAttribute(key, value);
      axes.append(box);
    });
    svg.addEventListener("pointermove", (event) => {
      const at = share(event);
      if (from) draw(at);
      said.textContent = at.inside
        ? `${written(x.shown(x.at(at.x)), (x.high - x.low) / 10)}, ${written(y.shown(y.at(at.y)), (y.high - y.low) / 100)}`
        : hint;
    });
    svg.addEventListener("pointerleave", () => { said.textContent = hint; });
    const drop = (event) => {
      if (!from) return;
      const chosen = draw(share(event));
      box.remove();
      from = box = null;
      if (event.type === "pointerup" && chosen.large) look({ x0: chosen.x0, x1: chosen.x1, y0: chosen.y0, y1: chosen.y1 });
    };
    svg.addEventListener("pointerup", drop);
    svg.addEventListener("pointercancel", drop);
    svg.addEventListener("dblclick", () => look({ ...whole }));
  };

  // -- galleries: which pictures, and so many at a time -----------------------------------------------------------------
  const PAGE = 60;
  const filter = (figure) => {
    const form = figure.querySelector(".filter"), tiles = [...figure.querySelectorAll(".picture")];
    const classes = (key) => [...new Set(tiles.map((tile) => tile.dataset[key]))].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const choice = (title, key) => {
      const label = make("label", {}, title), select = make("select");
      select.append(make("option", { value: "" }, "any"));
      for (const name of classes(key)) select.append(new Option(name, `=${name}`));
      label.append(select);
      form.append(label);
      return select;
    };
    const truth = choice("true class", "truth"), guess = choice("predicted", "guess");
    const label = make("label", {}, "confidence of at least"), least = make("input", { type: "range", min: 0, max: 1, step: 0.01, value: 0 });
    label.append(least);
    form.append(label);
    const clear = make("button", { type: "reset" }, "all");
    form.append(clear);
    const said = make("output");
    form.append(said);
    const more = make("button", { type: "button", class: "more" }, "more");
    figure.querySelector(".strip").after(more);
    let shown = PAGE;
    const show = () => {
      const found = tiles.filter((tile) =>
        (!truth.value || truth.value === `=${tile.dataset.truth}`) &&
        (!guess.value || guess.value === `=${tile.dataset.guess}`) &&
        Number(tile.dataset.share) >= Number(least.value));
      const visible = new Set(found.slice(0, shown));
      for (const tile of tiles) tile.hidden = !visible.has(tile);
      more.hidden = found.length <= shown;
      const sure = Number(least.value) ? `, at least ${Math.round(100 * least.value)} % sure` : "";
      said.textContent = `${found.length.toLocaleString("en")} of ${tiles.length.toLocaleString("en")} mistakes${sure}`;
    };
    form.addEventListener("input", () => { shown = PAGE; show(); });
    form.addEventListener("reset", () => setTimeout(() => { shown = PAGE; show(); }));
    form.addEventListener("submit", (event) => event.preventDefault());
    more.addEventListener("click", () => { shown += PAGE; show(); });
    form.hidden = false;
    show();
  };

  tabs();
  document.querySelectorAll("figure.zooms").forEach(zoom);
  document.querySelectorAll("figure.gallery").forEach(filter);
})();
