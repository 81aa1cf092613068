// Shows what models write as Markdown: paragraphs, headings, lists, tables, code, links, bold and italic.
// Everything works on places in the text, and `leaf(begin, end)` makes the nodes: text never becomes markup.
"use strict";

const FENCE = /^(\s*)(`{3,}(?!.*`)|~{3,})/; // ```a``` in one line is code in a text
const HEADING = /^(#{1,6})\s+(?=\S)/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(?=\S)/;
const RULE = /^\s*([-*_])(?:\s*\1){2,}\s*$/;
const COLUMNS = /^\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?$/; // the line below the head of a table
// The bounds keep marks that nothing closes from each searching the whole text.
const INLINE = /(`+)([^`]|[^`][^]*?[^`])\1(?!`)|\[([^\]\n]{1,500})\]\((https?:\/\/[^\s()<>]{1,2000})\)|\*\*(?=\S)((?:`[^`]*`|[^`]){0,2000}?(?:[^`\s]|`[^`]*`))\*\*(?!\*)|\*([^\s*]|[^\s*][^*]*[^\s*])\*(?!\*)/g;

function linesOf(text) {
  let begin = 0;
  return text.split("\n").map((line) => {
    const found = { line, begin, end: begin + line.length };
    begin = found.end + 1;
    return found;
  });
}

// Returns begin and end of each cell of a line that starts at a place.
function cellsOf(line, place) {
  const cells = [];
  const edge = /^\s*\|/.exec(line)?.[0].length ?? 0;
  for (const match of line.trimEnd().slice(edge).matchAll(/((?:\\.|[^\\|]|\\$)*)(?:\||$)/g)) {
    const begin = place + edge + match.index + match[1].length - match[1].trimStart().length;
    cells.push([begin, begin + match[1].trim().length]);
  }
  return cells.slice(0, -1); // the last match is the empty one at the end
}

// Appends bold, italic, links and code, and the text between them.
function addInline(parent, text, begin, end, leaf) {
  let place = begin;
  for (const match of text.slice(begin, end).matchAll(INLINE)) {
    const [whole, ticks, code, label, address, bold] = match;
    const mark = ticks?.length ?? (bold === undefined ? 1 : 2);
    const child = document.createElement(ticks ? "code" : address ? "a" : mark === 2 ? "strong" : "em");
    const at = begin + match.index;
    parent.append(leaf(place, at), child);
    place = at + whole.length;
    if (address) {
      Object.assign(child, { href: address, target: "_blank", rel: "noopener noreferrer" });
      addInline(child, text, at + 1, at + 1 + label.length, leaf);
    } else if (code === undefined) addInline(child, text, at + mark, place - mark, leaf);
    else child.append(leaf(at + mark, place - mark));
  }
  parent.append(leaf(place, end));
}

// Returns the element of a text, which may break off anywhere.
function markdown(text, leaf) {
  const root = document.createElement("div");
  const lines = linesOf(text);
  const lists = []; // those that are open, with the indentation of their marks and their last item

  const add = (parent, tag) => parent.appendChild(document.createElement(tag));
  // Returns the place of a block: what is indented further than the mark of an item belongs to it.
  const parentAt = (indent) => {
    while (lists.length && lists.at(-1).indent >= indent) lists.pop();
    return lists.at(-1)?.item ?? root;
  };
  const isBlock = (line) => !line.trim() || [FENCE, HEADING, ITEM, RULE].some((form) => form.test(line));
  const isTable = (number) => {
    const [head, below] = [lines[number], lines[number + 1]];
    if (!head.line.includes("|") || !below || !COLUMNS.test(below.line.trim())) return false;
    return cellsOf(head.line, 0).length === cellsOf(below.line, 0).length;
  };

  for (let number = 0; number < lines.length; number += 1) {
    const { line, begin, end } = lines[number];
    const indent = line.length - line.trimStart().length;
    let match;
    if (!line.trim()) continue;
    if ((match = FENCE.exec(line))) {
      const code = add(add(parentAt(indent), "pre"), "code");
      for (number += 1; number < lines.length; number += 1) {
        const inside = lines[number];
        if (inside.line.trimStart().startsWith(match[2]) && /^\s*[`~]+\s*$/.test(inside.line)) break;
        const left = Math.min(indent, inside.line.length - inside.line.trimStart().length);
        code.append(leaf(inside.begin + left, inside.end), "\n");
      }
    } else if (isTable(number)) {
      const table = add(add(parentAt(indent), "div"), "table");
      table.parentNode.className = "table";
      const sides = lines[number + 1].line.replace(/^\s*\||\|\s*$/g, "").split("|").map((each) => each.trim());
      const addRow = ({ line: row, begin: at }, tag) => {
        const made = add(table, "tr");
        for (const [index, [from, to]] of cellsOf(row, at).slice(0, sides.length).entries()) {
          const cell = add(made, tag);
          if (sides[index].endsWith(":")) cell.align = sides[index].startsWith(":") ? "center" : "right";
          addInline(cell, text, from, to, leaf);
        }
      };
      addRow(lines[number], "th");
      for (number += 2; number < lines.length && lines[number].line.includes("|"); number += 1) addRow(lines[number], "td");
      number -= 1;
    } else if (RULE.test(line)) {
      add(parentAt(0), "hr");
    } else if ((match = HEADING.exec(line))) {
      const heading = add(parentAt(0), `h${Math.min(6, match[1].length + 2)}`);
      addInline(heading, text, begin + match[0].length, end, leaf);
    } else if ((match = ITEM.exec(line))) {
      const tag = match[2] ? "ol" : "ul";
      const parent = parentAt(indent + 1);
      let open = lists.at(-1);
      if (open?.indent !== indent || open.list.localName !== tag) {
        if (open?.indent === indent) lists.pop();
        open = { indent, list: add(open?.indent === indent ? parentAt(indent) : parent, tag) };
        if (match[2]) open.list.start = Number(match[2]);
        lists.push(open);
      }
      open.item = add(open.list, "li");
      addInline(open.item, text, begin + match[0].length, end, leaf);
    } else {
      let last = end;
      while (number + 1 < lines.length && !isBlock(lines[number + 1].line) && !isTable(number + 1)) last = lines[++number].end;
      addInline(add(parentAt(indent), "p"), text, begin + indent, last, leaf);
    }
  }
  return root;
}
