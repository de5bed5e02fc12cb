// The editor of the policy page: CodeMirror around the form's text. The server checks, completes and draws.
(() => {
  const field = document.getElementById("text");
  if (!field || !window.CodeMirror) return;
  const {
    Decoration, EditorState, EditorView, GutterMarker, RangeSet, RangeSetBuilder, StateField, ViewPlugin, autocompletion,
    completionKeymap, forceLinting, gutter, highlightActiveLine, highlightActiveLineGutter, history, historyKeymap,
    indentWithTab, keymap, lineNumbers, lintGutter, lintKeymap, linter, standardKeymap,
  } = window.CodeMirror;
  const form = field.form;
  const base = form.getAttribute("action").replace(/#.*/, "");

  const ask = async (path, fields, signal) => {
    const reply = await fetch(path, { method: "POST", body: new URLSearchParams(fields), signal });
    if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
    return reply.json();
  };
  // The server counts characters from 1, CodeMirror UTF-16 units from 0.
  const offset = (doc, line, column) => {
    const at = doc.line(Math.min(Math.max(line, 1), doc.lines));
    return at.from + [...at.text].slice(0, Math.max(column - 1, 0)).join("").length;
  };

  // Findings, at their line, and what else the server draws of the text.
  let running = null;
  const shownAt = (finding, view) => {
    const { doc } = view.state;
    const line = doc.line(Math.min(Math.max(finding.line, 1), doc.lines));
    const start = finding.column ? Math.min(offset(doc, finding.line, finding.column), line.to) : line.from;
    const word = /^(?:"[^"]*"|'[^']*'|[^\s,}\]#:]+)/.exec(line.text.slice(start - line.from));
    const from = finding.column ? start : line.from + (line.text.length - line.text.trimStart().length);
    const to = finding.column && word ? start + word[0].length : line.to;
    const actions = (finding.fix ? [finding.fix] : []).map((fix) => ({
      name: finding.mend || "Mend it",
      apply(view) {
        const { doc } = view.state;
        const first = doc.line(Math.min(fix.line, doc.lines));
        const from = fix.line > doc.lines ? doc.length : first.from;
        const to = fix.count ? doc.line(Math.min(fix.line + fix.count - 1, doc.lines)).to : from;
        let insert = fix.lines.join("\n");
        let end = to;
        if (!fix.lines.length && fix.count) end = Math.min(to + 1, doc.length);
        else if (!fix.count) insert += "\n";
        view.dispatch({ changes: { from, to: end, insert }, userEvent: "input.mend" });
      },
    }));
    const severity = finding.error ? "error" : finding.recorded ? "info" : "warning";
    return { from: Math.min(from, to), to, severity, source: finding.code, message: finding.message, actions };
  };
  let drawn = JSON.parse(field.dataset.findings);
  const findings = async (view) => {
    running?.abort();
    if (drawn) { // with the page; nothing is asked for what it says already
      const found = drawn.map((finding) => shownAt(finding, view));
      drawn = null;
      return found;
    }
    const mine = running = new AbortController();
    try {
      const found = await ask(`${base}/check`, { text: view.state.doc.toString(), base: form.elements.base.value }, mine.signal);
      for (const [id, html] of Object.entries(found.parts)) {
        const part = document.getElementById(id);
        if (part) part.innerHTML = html;
      }
      return found.findings.map((finding) => shownAt(finding, view));
    } catch (error) {
      if (error.name !== "AbortError") console.warn(error.message);
      return [];
    } finally {
      if (running === mine) running = null;
    }
  };

  const completions = async (context) => {
    const line = context.state.doc.lineAt(context.pos);
    const before = context.state.sliceDoc(line.from, context.pos);
    if (!context.explicit && !/[\w{[,:] ?$/.test(before)) return null;
    const fields = { text: context.state.doc.toString(), line: line.number, column: [...before].length + 1 };
    const found = await ask(`${base}/complete`, fields).catch(() => null);
    if (!found || !found.options.length || context.aborted) return null;
    const from = offset(context.state.doc, line.number, found.column);
    // In the server's order: that of the file's keys.
    return { from, options: found.options.map((option, place) => ({ ...option, boost: 99 - place })), validFor: /^[\w.-]*$/ };
  };

  // Colours of YAML: comments, keys, texts, numbers with their units, and the words of rules.
  const TOKENS = /(^|\s)(#.*$)|("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|([\w.-]+)(?=\s*:(?:\s|$))|((?:[+-]|\b)\d+(?:\.\d+)?(?:ms|[smhd%])?(?![\w.-]))|\b(and|or|not|otherwise|true|false|none|null|easiest|of its kind)\b/g;
  const CLASSES = [, , "comment", "text", "key", "number", "word"];
  const marks = CLASSES.map((name) => name && Decoration.mark({ class: `tok-${name}` }));
  const coloured = (view) => {
    const found = new RangeSetBuilder();
    for (const { from, to } of view.visibleRanges) {
      for (let at = from; at <= to;) {
        const line = view.state.doc.lineAt(at);
        for (const match of line.text.matchAll(TOKENS)) {
          const kind = CLASSES.findIndex((name, group) => name && match[group] !== undefined);
          const start = line.from + match.index + (kind === 2 ? match[1].length : 0);
          found.add(start, start + match[kind].length, marks[kind]);
        }
        at = line.to + 1;
      }
    }
    return found.finish();
  };
  const colours = ViewPlugin.fromClass(class {
    constructor(view) { this.decorations = coloured(view); }
    update(update) { if (update.docChanged || update.viewportChanged) this.decorations = coloured(update.view); }
  }, { decorations: (plugin) => plugin.decorations });

  // Who set each line, at the first of a run: from the page's table, moved along with edits; what is changed has nobody yet.
  class Setter extends GutterMarker {
    constructor(text, title, first) { super(); Object.assign(this, { text, title, first }); }
    eq(other) { return other.text === this.text && other.title === this.title && other.first === this.first; }
    toDOM() {
      const part = document.createElement("span");
      [part.textContent, part.title] = [this.first ? this.text : "│", `${this.text}: ${this.title}`];
      return part;
    }
  }
  const rows = [...document.querySelectorAll(".blame tr")];
  const original = rows.map((row) => row.lastElementChild.textContent);
  const blame = StateField.define({
    create(state) {
      const found = new RangeSetBuilder();
      rows.forEach((row, index) => {
        const who = row.querySelector(".who");
        if (!who.dataset.who || index >= state.doc.lines) return;
        const line = state.doc.line(index + 1);
        const first = !index || rows[index - 1].querySelector(".who").dataset.who !== who.dataset.who;
        if (line.text === original[index]) found.add(line.from, line.from, new Setter(who.dataset.who, who.title, first));
      });
      return found.finish();
    },
    update(value, change) {
      if (!change.docChanged) return value;
      const changed = new Set();
      change.changes.iterChangedRanges((_, __, from, to) => {
        for (let at = from; at <= to;) {
          const line = change.newDoc.lineAt(at);
          changed.add(line.from);
          at = line.to + 1;
        }
      });
      return value.map(change.changes).update({ filter: (from) => !changed.has(from) && change.newDoc.lineAt(from).from === from });
    },
  });
  const setterOf = (view, block) => {
    let found = null;
    view.state.field(blame).between(block.from, block.from, (from, _, setter) => { if (from === block.from) found = setter; });
    return found;
  };
  const setters = rows.some((row) => row.querySelector(".who").dataset.who)
    ? [blame, gutter({ class: "cm-blame", lineMarker: setterOf, lineMarkerChange: (update) => update.docChanged, initialSpacer: () => new Setter("0000000 anna", "", true) })] : [];

  const theme = EditorView.theme({
    "&": { backgroundColor: "var(--faint)", color: "var(--ink)", border: "1px solid var(--line)", borderRadius: "6px", fontSize: "12.5px" },
    "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "1px" },
    ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
    ".cm-content": { caretColor: "var(--ink)", padding: "8px 0" },
    ".cm-gutters": { backgroundColor: "var(--faint)", color: "var(--muted)", border: "0", borderRight: "1px solid var(--line)" },
    ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent) 7%, transparent)" },
    ".cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--accent) 7%, transparent)", color: "var(--ink)" },
    ".cm-content ::selection": { backgroundColor: "color-mix(in srgb, var(--accent) 30%, transparent)" },
    ".cm-tooltip": { backgroundColor: "var(--panel)", color: "var(--ink)", border: "1px solid var(--line)", borderRadius: "6px", maxWidth: "min(520px, 90vw)" },
    ".cm-tooltip-autocomplete > ul > li": { padding: "2px 8px", lineHeight: "1.5" },
    ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--panel)" },
    ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal" },
    "li[aria-selected] .cm-completionDetail": { color: "inherit" },
    ".cm-tooltip.cm-completionInfo": { padding: "6px 10px", maxWidth: "320px", fontSize: "12.5px", lineHeight: "1.45" },
    ".cm-diagnostic": { padding: "6px 10px", borderLeftWidth: "3px" },
    ".cm-diagnosticAction": { backgroundColor: "var(--accent)", color: "var(--panel)", borderRadius: "4px", fontWeight: "600", whiteSpace: "normal", textAlign: "left" },
    ".cm-diagnosticSource": { color: "var(--muted)", opacity: "1", fontSize: "11px" },
  });
  const follow = EditorView.updateListener.of((update) => { if (update.docChanged) field.value = update.state.doc.toString(); });
  const view = new EditorView({
    state: EditorState.create({
      doc: field.value,
      extensions: [
        setters, lintGutter(), lineNumbers(), history(), highlightActiveLine(), highlightActiveLineGutter(), colours, theme, follow,
        autocompletion({ override: [completions], icons: false }),
        linter(findings, { delay: 300 }),
        keymap.of([...completionKeymap, ...standardKeymap, ...historyKeymap, ...lintKeymap, indentWithTab]),
        EditorState.tabSize.of(2),
        EditorView.contentAttributes.of({ "aria-labelledby": "edit", "aria-describedby": "editor-keys", spellcheck: "false", tabindex: "0" }),
      ],
    }),
  });
  field.hidden = true;
  field.before(view.dom);
  document.documentElement.classList.add("has-editor");
  // CodeMirror measures its lines only where they are in sight, so the page goes to a result once they are measured.
  form.setAttribute("action", base);
  const result = document.getElementById("result");
  if (result) requestAnimationFrame(() => requestAnimationFrame(() => result.scrollIntoView()));
  // Esc that closed something of the editor does not leave it too.
  view.dom.addEventListener("keydown", (event) => { if (event.key === "Escape" && event.defaultPrevented) event.stopPropagation(); });

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("[data-line]");
    if (!link || Number(link.dataset.line) < 1) return;
    event.preventDefault();
    const line = view.state.doc.line(Math.min(Number(link.dataset.line), view.state.doc.lines));
    view.dispatch({ selection: { anchor: line.from }, effects: EditorView.scrollIntoView(line.from, { y: "center" }) });
    view.focus();
  });
  forceLinting(view);
})();
