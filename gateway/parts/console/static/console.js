// What the pages do beyond links and forms: the theme, and the keyboard. Every page works without it.
(() => {
  const root = document.documentElement;
  const toggle = document.querySelector("[data-theme-toggle]");
  if (toggle) {
    toggle.hidden = false;
    toggle.addEventListener("click", () => {
      const dark = root.dataset.theme === "dark" || (root.dataset.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
      root.dataset.theme = dark ? "light" : "dark";
      document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
    });
  }
  // One clock: times come in UTC, and are shown in the browser's own zone, which is named.
  const zone = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts().find((part) => part.type === "timeZoneName").value;
  const written = {
    clock: (iso) => iso.slice(11, 19),
    minute: (iso) => iso.slice(11, 16),
    date: (iso) => iso.slice(0, 19).replace("T", " "),
    day: (_, text) => text.slice(0, 3) + text.slice(4, 11) + text.slice(16, 22),
    month: (_, text) => `${text.slice(8, 11)} ${text.slice(5, 7)}`,
  };
  const write = (ms, form, moved) => {
    const at = new Date(ms - moved * 60000);
    return written[form](at.toISOString(), at.toUTCString());
  };
  const local = (ms, form) => write(ms, form, new Date(ms).getTimezoneOffset());
  globalThis.clockOfBrowser = { zone, local };
  const localise = () => {
    for (const one of document.querySelectorAll("[data-utc]")) {
      const ms = Date.parse(one.dateTime || one.dataset.time);
      one.textContent = one.textContent.replace(write(ms, one.dataset.utc, 0), local(ms, one.dataset.utc));
      if (one.title) one.title = `${local(ms, "date")} ${zone}`;
      one.removeAttribute("data-utc");
    }
    if (zone === "UTC") return;
    for (const one of document.querySelectorAll("[data-zone]")) {
      if (!one.textContent.includes("UTC")) continue;
      one.textContent = one.textContent
        .replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC/g, (_, day, time) => `${local(Date.parse(`${day}T${time}Z`), "date")} ${zone}`)
        .replace("UTC", zone);
    }
  };
  localise();
  new MutationObserver(localise).observe(document.body, { subtree: true, childList: true, characterData: true, attributeFilter: ["data-utc"] });
  let going = false;
  const rows = () => [...document.querySelectorAll("[data-row]")];
  const step = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.hasAttribute("data-at"));
    const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    if (at >= 0) all[at].removeAttribute("data-at");
    next.setAttribute("data-at", "");
    next.scrollIntoView({ block: "nearest" });
    const link = next.querySelector("a[data-peek]") || next.querySelector("a");
    link.focus({ preventScroll: true });
    if (document.querySelector("#peek > *")) link.click();
  };
  // A click on a row peeks, or opens where there is no room beside it; not one on a link, or one that marks text.
  document.addEventListener("click", (event) => {
    const row = event.target.closest?.("tr[data-row]"), link = row?.querySelector("a[data-peek]");
    if (!link || event.target.closest("a, button, summary, input") || String(getSelection())) return;
    document.querySelector("[data-row][data-at]")?.removeAttribute("data-at");
    row.setAttribute("data-at", "");
    (link.offsetParent ? link : row.querySelector("a")).click();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.target.isContentEditable) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (going) {
      going = false;
      const link = document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    } else if (event.key === "g") going = true;
    else if (event.key === "/") { document.getElementById("find").focus(); event.preventDefault(); }
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "Escape") document.querySelector("[data-close]")?.click();
  });
  // Where the views do not fit beside each other, the present one is in sight.
  const views = document.querySelector(".top nav"), view = views?.querySelector("[aria-current]");
  if (view) views.scrollLeft = view.offsetLeft + view.offsetWidth / 2 - views.offsetLeft - views.clientWidth / 2;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy);
    button.removeAttribute("aria-label"); // what it says next is its name
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch { // a page that is not served by https: the text is marked, for Ctrl-C
      getSelection().selectAllChildren(text);
      button.textContent = "Press Ctrl-C";
    }
  });
  const ready = () => {
    for (const one of document.querySelectorAll("[data-copy][hidden]")) one.hidden = false;
    // What is wider than the window begins with its newest end.
    for (const one of document.querySelectorAll("[data-newest]")) {
      one.scrollLeft = one.scrollWidth;
      one.removeAttribute("data-newest");
    }
    // A slider and the number that it drags; a form that says so is sent as it changes (What if).
    for (const range of document.querySelectorAll("input[type=range][data-number][hidden]")) {
      const number = document.getElementById(range.dataset.number);
      const line = range.parentElement.querySelector(".now");
      const show = () => {
        const at = `${Math.max(0, Math.min(1, (number.value - range.min) / (range.max - range.min))) * 100}%`;
        for (const end of ["x1", "x2"]) line?.setAttribute(end, at);
      };
      range.hidden = false;
      range.addEventListener("input", () => { number.value = range.value; show(); });
      number.addEventListener("input", () => { range.value = number.value; show(); });
    }
  };
  ready();
  // Figures that take long come after the page.
  document.addEventListener("htmx:after:swap", ready);
  // A live page does not move under the pointer.
  document.addEventListener("htmx:sse:before:message", (event) => {
    if (event.target.matches?.(":hover") || event.target.querySelector?.(":hover, :focus-visible")) event.preventDefault();
  });
})();
