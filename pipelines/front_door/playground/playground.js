// A chat with the served model; a page that continues texts if the model has no chat template.
// An answer shows who wrote its tokens, and beside it what the target alone answers, if one asks for that.
"use strict";

const ENDINGS = {
  stop: "ended by itself",
  length: "cut off at the most tokens",
  stopped: "stopped by you",
  error: "ended by an error",
};
const SOURCES = ["draft_model", "lookup", "grammar", "target"];
const element = (id) => document.getElementById(id);
let model = null; // as GET /v1/models describes it
let running = null; // the AbortController of the request in progress
let conversation = [];

function make(tag, className, ...children) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...children);
  return made;
}

// Changes the conversation; whoever reads its end goes on doing so.
function atEnd(change) {
  const page = document.documentElement;
  const isAtEnd = page.scrollTop + window.innerHeight > page.scrollHeight - 40;
  change();
  if (isAtEnd) page.scrollTop = page.scrollHeight;
}

async function send(path, content, signal) {
  const key = element("key").value.trim();
  const response = await fetch(path, {
    method: content ? "POST" : "GET",
    headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) },
    body: content && JSON.stringify(content),
    signal,
  }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Start it again with 'draftproof serve'.");
  });
  if (response.ok) return response;
  if (response.status === 401) showSettings(true); // the field of the key is there
  const said = await response.json().catch(() => null);
  throw new Error(said?.error?.message ?? `The server answered ${response.status} ${response.statusText}.`);
}

// Yields the data of each event of a stream.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]" && data !== ":") yield JSON.parse(data);
    }
  }
}

class Answer {
  constructor(name, asked) {
    this.asked = asked;
    this.written = ""; // by the model, with the marks of its thoughts
    this.content = "";
    this.thoughts = "";
    this.runs = []; // where in `written` the tokens of one author end
    this.counts = Object.fromEntries(SOURCES.map((source) => [source, 0]));
    this.times = {};
    this.reason = "";
    this.body = make("div", "");
    this.figures = make("p", "figures");
    this.section = make("section", "", make("b", "role", name), this.body, this.figures);
    this.section.ariaLabel = name;
  }

  get tokens() {
    return Object.values(this.counts).reduce((sum, count) => sum + count, 0);
  }

  // The first event's tokens are what the time to the first token pays for.
  get perSecond() {
    const { first, last } = this.times;
    return last > first ? (1000 * (this.tokens - this.inFirst)) / (last - first) : null;
  }

  // Adds what arrives, until the end or an error.
  async receive(signal) {
    this.times.began = performance.now();
    this.section.ariaBusy = "true";
    const timer = setInterval(() => this.show(), 100);
    try {
      const path = this.asked.messages ? "v1/chat/completions" : "v1/completions";
      for await (const event of events(await send(path, this.asked, signal))) this.take(event);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      this.reason = "stopped";
    } finally {
      clearInterval(timer);
      this.reason ||= "error";
      this.section.ariaBusy = "false";
      this.show();
    }
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    this.usage = event.usage ?? this.usage;
    this.speculation = event.metrics?.speculative_decoding ?? this.speculation;
    for (const choice of event.choices) {
      for (const { source, num_tokens, text } of choice.token_sources ?? []) {
        this.counts[source] += num_tokens;
        this.written += text;
        this.runs.push({ source, end: this.written.length });
        this.times.last = performance.now();
      }
      if (this.times.first === undefined && this.tokens) {
        this.times.first = this.times.last;
        this.inFirst = this.tokens;
      }
      this.content += choice.text ?? choice.delta?.content ?? "";
      this.thoughts += choice.delta?.reasoning_content ?? "";
      this.reason = choice.finish_reason ?? this.reason;
      this.isNew = true;
    }
  }

  // Returns the nodes of a piece of the content, a span for each author.
  coloured(begin, end) {
    const made = document.createDocumentFragment();
    const place = this.written.indexOf(this.content, this.thoughts.length);
    if (place < 0) return new Text(this.content.slice(begin, end));
    let at = begin;
    for (const { source, end: runEnd } of this.runs) {
      const until = Math.min(end, runEnd - place);
      if (until > at) made.append(make("span", source, this.content.slice(at, until)));
      at = Math.max(at, until);
    }
    made.append(this.content.slice(at, end));
    return made;
  }

  show() {
    this.figures.textContent = this.summary();
    if (!this.isNew) return;
    this.isNew = false;
    const leaf = (begin, end) => this.coloured(begin, end);
    const shown = this.asked.messages
      ? markdown(this.content, leaf)
      : make("div", "", leaf(0, this.content.length));
    shown.className = this.asked.messages ? "text markdown" : "text";
    if (this.thoughts) {
      this.thinking ??= make("details", "quiet", make("summary", "", "Thoughts"), make("div", "text"));
      this.thinking.lastChild.textContent = this.thoughts;
      shown.prepend(this.thinking);
    }
    for (const pre of shown.querySelectorAll("pre")) pre.before(copyButton());
    atEnd(() => this.body.replaceChildren(shown));
  }

  summary() {
    const { began, first } = this.times;
    const seconds = (time) => `${((time - began) / 1000).toFixed(2)} s`;
    if (first === undefined) return ENDINGS[this.reason] || this.reason || `computing the prompt, ${seconds(performance.now())}`;
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    const parts = [
      `${this.tokens} tokens`,
      this.perSecond && `${this.perSecond.toFixed(1)} tokens/s`,
      `first token after ${seconds(first)}`,
      cached && `${cached} of ${this.usage.prompt_tokens} prompt tokens cached`,
      `${(100 - (100 * this.counts.target) / this.tokens).toFixed(0)} % from drafts`,
      this.speculation && `${(100 * this.speculation.draft_acceptance_rate).toFixed(0)} % of the draft tokens accepted`,
      this.reason && (ENDINGS[this.reason] ?? this.reason),
    ];
    return parts.filter(Boolean).join(" · ");
  }
}

// Returns the button of the code behind it; its label is a style, so that it is no part of the answer's text.
function copyButton() {
  const button = make("button", "copy");
  button.type = "button";
  button.ariaLabel = button.dataset.label = "Copy";
  button.addEventListener("click", async () => {
    const code = button.nextElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.ariaLabel = button.dataset.label = "Copied";
    } catch { // without TLS pages have no clipboard, except on this machine
      getSelection().selectAllChildren(code);
      button.ariaLabel = button.dataset.label = "Selected: press Ctrl+C";
    }
  });
  return button;
}

// Runs work that can be stopped; says what went wrong.
async function attempt(work) {
  if (running) return;
  running = new AbortController();
  element("send").ariaDisabled = "true";
  element("stop").ariaDisabled = "false";
  element("error").hidden = true;
  try {
    await work(running.signal);
  } catch (error) {
    element("error").textContent = error.message;
    element("error").hidden = false;
  } finally {
    running = null;
    element("send").ariaDisabled = "false";
    element("stop").ariaDisabled = "true";
  }
}

function number(id) {
  const text = element(id).value;
  return text === "" ? undefined : Number(text);
}

// Returns the body of a request; the seed is drawn here, so that the target alone can be given the same.
function request(said) {
  const schema = element("schema").value.trim();
  let json;
  try {
    json = schema ? JSON.parse(schema) : undefined;
  } catch (error) {
    throw new Error(`structured_outputs.json is not JSON: ${error.message}.`);
  }
  const system = element("system").value.trim();
  const before = system ? [{ role: "system", content: system }] : [];
  return {
    ...(model.chat ? { messages: [...before, ...conversation, { role: "user", content: said }] } : { prompt: said }),
    max_tokens: number("max_tokens"),
    temperature: number("temperature"),
    top_p: number("top_p"),
    top_k: number("top_k"),
    seed: number("seed") ?? Math.floor(Math.random() * 2 ** 53),
    structured_outputs: json && { json },
    stream: true,
    stream_options: { include_usage: true },
    return_token_sources: true,
  };
}

async function ask(signal) {
  await showModel(signal);
  const prompt = element("prompt");
  const said = prompt.value;
  const asked = request(said);
  const turns = conversation;
  const answer = new Answer(model.chat ? "assistant" : "continuation", asked);
  const question = make("li", "user", make("b", "role", model.chat ? "user" : "prompt"), make("div", "text", said));
  const reply = make("li", "", make("div", "answers", answer.section));
  if (!model.chat) element("conversation").replaceChildren();
  element("conversation").append(question, reply);
  if (model.chat) prompt.value = "";
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
  try {
    await answer.receive(signal);
  } finally {
    if (answer.tokens) {
      turns.push({ role: "user", content: said }, { role: "assistant", content: answer.content });
      addComparison(answer, reply);
    } else if (answer.reason === "stopped" || answer.reason === "error") {
      question.remove(); // nothing was answered: the text can be sent again
      reply.remove();
      if (turns === conversation) prompt.value ||= said;
    }
  }
}

// Adds the button that asks the target alone.
function addComparison(answer, reply) {
  const button = make("button", "compare", "Compare with the target alone");
  const verdict = make("p", "verdict");
  button.type = "button";
  verdict.ariaLive = "polite";
  button.addEventListener("click", () => attempt(async (signal) => {
    const isPart = answer.reason === "stopped" || answer.reason === "error";
    const alone = new Answer("target alone", {
      ...answer.asked,
      num_draft_tokens: 0,
      max_tokens: isPart ? answer.tokens : answer.asked.max_tokens,
    });
    answer.section.parentNode.replaceChildren(answer.section, alone.section);
    verdict.textContent = "";
    await alone.receive(signal);
    if (alone.reason !== "stopped") verdict.textContent = compared(answer, alone, isPart);
  }));
  atEnd(() => reply.append(button, verdict));
}

function compared(answer, alone, isPart) {
  const [one, other] = [answer, alone].map(({ thoughts, content }) => thoughts + content);
  if (isPart ? !other.startsWith(one) : one !== other) return "THE TEXTS DIFFER.";
  const ratio = answer.perSecond / alone.perSecond;
  return Number.isFinite(ratio) ? `The same text, ${ratio.toFixed(2)} times the tokens per second.` : "The same text.";
}

function showSettings(isShown) {
  element("settings").hidden = !isShown;
  element("show-settings").ariaExpanded = String(isShown);
  if (isShown) element("settings").scrollIntoView({ block: "nearest" });
}

async function showModel(signal) {
  if (model) return;
  model = (await (await send("v1/models", null, signal)).json()).data[0];
  element("model").textContent = model.id;
  for (const [name, value] of Object.entries(model.default_sampling_params ?? {})) {
    if (element(name)) element(name).placeholder = value;
  }
  if (model.chat) return;
  document.body.classList.add("completion");
  element("prompt-label").textContent = "Text to continue";
  element("send").textContent = "Continue";
  element("max_tokens").value ||= 160;
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(ask);
});
element("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  const isTouched = matchMedia("(pointer: coarse)").matches; // a keyboard on glass has no Shift+Enter
  if (isTouched && !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  attempt(ask);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing) running?.abort();
});
element("stop").addEventListener("click", () => running?.abort());
element("show-settings").addEventListener("click", () => showSettings(element("settings").hidden));
element("clear").addEventListener("click", () => {
  running?.abort();
  conversation = [];
  element("conversation").replaceChildren();
  element("prompt").focus();
});
element("colours").addEventListener("change", (event) => {
  document.body.classList.toggle("coloured", event.target.checked);
});
element("key").addEventListener("change", () => showModel().catch(() => {})); // sending says what is wrong
attempt(showModel);
