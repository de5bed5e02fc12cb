// The parts of CodeMirror that the policy page uses; the page's own code is static/policy.js.
export { EditorState, RangeSet, RangeSetBuilder, StateEffect, StateField } from "@codemirror/state";
export {
  Decoration, EditorView, GutterMarker, ViewPlugin, gutter, highlightActiveLine, highlightActiveLineGutter, keymap, lineNumbers,
} from "@codemirror/view";
export { history, historyKeymap, indentWithTab, standardKeymap } from "@codemirror/commands";
export { forceLinting, lintGutter, lintKeymap, linter } from "@codemirror/lint";
export { autocompletion, completionKeymap } from "@codemirror/autocomplete";
