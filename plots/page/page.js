"use strict";
// Tables that sort and filter. Rows are data; a leaf of them is in the page, and every cell is written as text.
(() => {
  const MISSING = "–", LONGEST = 300, GROUPED = 1e4, SCIENTIFIC = 1e9;
  const UNSEEN = /^$|^[ \xa0]|[ \xa0]$|[\x00-\x1f]/;
  const SIZES = [20, 100, 500];
  const HINTS = {
    number: "> 0.5, <= 2, 1..3, != 0, or – for missing values; several conditions must all hold",
    text: "part of the text, =the whole text, or – for missing values",
    bool: "yes or no",
  };
  const words = new Intl.Collator("en", { numeric: true });

  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const grouped = (digits) => digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");

  // The same texts as columns.py, which writes the first leaf.
  function number(value, decimals) {
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
    const size = Math.abs(value);
    const whole = decimals === 0 && Number.isInteger(value) && size <= Number.MAX_SAFE_INTEGER;
    if (value && (size < 10 ** -decimals || size >= SCIENTIFIC) && !whole) return value.toExponential(1).replace("+", "");
    const [digits, rest] = value.toFixed(decimals).split(".");
    return (size >= GROUPED ? grouped(digits) : digits) + (rest === undefined ? "" : `.${rest}`);
  }

  function shown(column, value) {
    if (value === null) return MISSING;
    if (column.kind === "number") return number(value, column.decimals);
    if (column.kind === "bool") return value ? "yes" : "no";
    const letters = value.length > LONGEST ? [...value] : [];
    const text = letters.length > LONGEST ? letters.slice(0, LONGEST).join("") : value;
    const seen = UNSEEN.test(text) ? JSON.stringify(text) : text;
    return letters.length > LONGEST ? `${seen}… (${grouped(String(letters.length))} characters)` : seen;
  }

  function compare(column) {
    if (column.kind === "text") return (a, b) => words.compare(a, b);
    return (a, b) => a - b;
  }

  // What a filter's text asks of a value: a function, null for nothing, undefined for what cannot be understood.
  function condition(column, text) {
    const asked = text.trim();
    if (!asked) return null;
    if (asked === MISSING || asked === "-") return (value) => value === null;
    if (column.kind === "number") return numeric(column, asked);
    const wanted = asked.toLowerCase();
    const lower = (value) => (value === null ? "" : column.kind === "bool" ? (value ? "yes" : "no") : value.toLowerCase());
    if (wanted.startsWith("=")) return (value) => lower(value) === wanted.slice(1).trim();
    return (value) => lower(value).includes(wanted);
  }

  const NUMBER = "[-−+]?(?:(?:\\d[\\d,]*\\.?\\d*|\\.\\d+)(?:e[-−+]?\\d+)?|inf(?:inity)?|∞)";
  const ONE = new RegExp(`^\\s*(?:(${NUMBER})\\s*\\.\\.\\s*(${NUMBER})|(>=|<=|!=|==|[<>=≥≤≠])?\\s*(${NUMBER}))(?=$|[\\s<>=!≥≤≠&])\\s*(?:&&?|and\\b)?`, "i");
  const read = (text) => {
    const plain = text.replace("−", "-").replaceAll(",", "").replace(/inf(inity)?|∞/i, "Infinity");
    return Number(plain);
  };

  function numeric(column, asked) {
    const tests = [];
    for (let rest = asked; rest; ) {
      const found = ONE.exec(rest);
      if (!found) return undefined;
      rest = rest.slice(found[0].length);
      const [, low, high, sign, bound] = found;
      tests.push(low === undefined ? single(column, sign, bound) : (value) => value >= read(low) && value <= read(high));
    }
    return (value) => value !== null && tests.every((test) => test(value));
  }

  function single(column, sign, text) {
    const bound = read(text);
    // As large as it is, or as it is shown: what one reads in a cell finds that cell.
    const same = (value) => value === bound || shown(column, value) === text.trim();
    switch (sign) {
      case ">": return (value) => value > bound;
      case "<": return (value) => value < bound;
      case ">=": case "≥": return (value) => value >= bound;
      case "<=": case "≤": return (value) => value <= bound;
      case "!=": case "≠": return (value) => !same(value);
      default: return same;
    }
  }

  function setUp(table) {
    const { columns } = JSON.parse(document.getElementById(table.dataset.table).textContent);
    for (const column of columns) {
      if (column.kind !== "number") continue;
      column.values = column.values.map((v) => (v === "inf" ? Infinity : v === "-inf" ? -Infinity : v));
    }
    const total = columns[0].values.length;
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const status = table.closest("section").querySelector(".count");
    const tests = columns.map(() => null);
    let sorted = null, direction = 1, rows = [], leaf = 0, size = SIZES[0];

    function select() {
      rows = [];
      for (let row = 0; row < total; row++) {
        if (tests.every((test, c) => test === null || test(columns[c].values[row]))) rows.push(row);
      }
      if (sorted !== null) {
        const { values } = columns[sorted], by = compare(columns[sorted]);
        // Missing values come last, whichever way one sorts.
        rows.sort((a, b) => {
          const here = values[a], there = values[b];
          if (here === null || there === null) return (here === null) - (there === null) || a - b;
          return direction * by(here, there) || a - b;
        });
      }
      leaf = 0;
      draw();
    }

    function draw() {
      const start = leaf * size, stop = Math.min(start + size, rows.length);
      body.replaceChildren(...rows.slice(start, stop).map((row) => element("tr", {}, ...columns.map((column) => {
        const value = column.values[row];
        const cell = element("td", { className: column.kind + (value === null ? " missing" : ""), textContent: shown(column, value) });
        if (column.kind === "number" && value !== null && Number.isFinite(value)) cell.title = String(value);
        return cell;
      }))));
      const of = rows.length === total ? "" : ` (of ${grouped(String(total))})`;
      const many = `${grouped(String(rows.length))} row${rows.length === 1 ? "" : "s"}${of}`;
      status.textContent = rows.length > size
        ? `rows ${grouped(String(start + 1))}–${grouped(String(stop))} of ${many}` : many;
      back.disabled = leaf === 0;
      on.disabled = stop >= rows.length;
    }

    function sort(index) {
      // Up, down, and back to the order in which rows came.
      if (sorted !== index) [sorted, direction] = [index, 1];
      else if (direction === 1) direction = -1;
      else sorted = null;
      heads.forEach((head, c) => head.setAttribute("aria-sort", c !== sorted ? "none" : direction === 1 ? "ascending" : "descending"));
      select();
    }

    heads.forEach((head, index) => {
      head.replaceChildren(element("button", { type: "button", onclick: () => sort(index) }, ...head.childNodes));
      head.setAttribute("aria-sort", "none");
    });
    const filters = element("tr", { className: "filters" }, ...columns.map((column, index) => {
      const input = element("input", { type: "search", placeholder: "filter", title: HINTS[column.kind], spellcheck: false });
      input.setAttribute("aria-label", `Filter ${column.name}: ${HINTS[column.kind]}`);
      input.oninput = () => {
        const test = condition(column, input.value);
        input.setAttribute("aria-invalid", String(test === undefined));
        if (test === undefined) return void (status.textContent = `${column.name}: write ${HINTS[column.kind]}`);
        tests[index] = test;
        return select();
      };
      return element("th", { className: column.kind }, input);
    }));
    table.tHead.append(filters);

    const turn = (by) => () => { leaf += by; draw(); };
    const back = element("button", { type: "button", textContent: "‹ back", onclick: turn(-1) });
    const on = element("button", { type: "button", textContent: "on ›", onclick: turn(1) });
    const sizes = element("select", {}, ...SIZES.map((rows) => element("option", { textContent: String(rows), value: rows })));
    sizes.onchange = () => { size = Number(sizes.value); leaf = 0; draw(); };
    const foot = element("div", { className: "foot" });
    status.before(foot);
    foot.append(status);
    if (total > SIZES[0]) foot.append(back, on, element("label", {}, sizes, " rows at a time"));
    foot.append(element("span", { className: "hint", textContent: "Sort by a column's name; filter numbers by > 0.5 or 1..3, text by a part of it." }));
    select();
  }

  document.querySelectorAll("table[data-table]").forEach(setUp);
  document.querySelectorAll("button.picture").forEach((button) => {
    button.onclick = () => button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
  });
})();
