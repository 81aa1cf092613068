// Asks the front door twice, with speculation and by the target alone, and shows who wrote each token.
"use strict";

const SOURCES = ["draft_model", "lookup", "grammar", "target"];
const element = (id) => document.getElementById(id);
let running = null; // the AbortController of the requests in progress
let isChat = false;
let conversation = [];

function headers() {
  const key = element("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

function number(id) {
  const text = element(id).value;
  return text === "" ? undefined : Number(text);
}

function body(asked, seed, more) {
  return {
    ...asked,
    temperature: number("temperature"),
    max_tokens: number("max-tokens"),
    seed,
    stream: true,
    stream_options: { include_usage: true },
    return_token_sources: true,
    ...more,
  };
}

// Fields of a request whose answer must follow the schema, if there is one.
function form() {
  const schema = element("schema").value.trim();
  return schema ? { structured_outputs: { json: JSON.parse(schema) } } : {};
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
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

class Answer {
  constructor(section) {
    this.output = section.querySelector("pre");
    this.figures = section.querySelector("dl");
    this.shares = section.querySelector(".shares");
    this.text = "";
    this.counts = Object.fromEntries(SOURCES.map((source) => [source, 0]));
    this.began = performance.now();
    this.first = null;
    this.last = null;
    this.seed = null;
    this.reason = "";
    this.speculation = null;
    this.output.replaceChildren();
    this.show();
  }

  get tokens() {
    return Object.values(this.counts).reduce((sum, count) => sum + count, 0);
  }

  // The first chunk's tokens are what the time to the first token pays for.
  get perSecond() {
    return this.last > this.first ? (1000 * (this.tokens - this.inFirst)) / (this.last - this.first) : null;
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.metrics) this.speculation = event.metrics.speculative_decoding;
    for (const choice of event.choices) {
      for (const run of choice.token_sources ?? []) {
        this.counts[run.source] += run.num_tokens;
        const span = document.createElement("span");
        span.className = run.source;
        span.textContent = run.text;
        this.output.append(span);
        this.text += run.text;
      }
      if (choice.token_sources?.length) {
        this.last = performance.now();
        if (this.first === null) {
          this.first = this.last;
          this.inFirst = this.tokens;
        }
      }
      this.seed = choice.seed ?? this.seed;
      this.reason = choice.finish_reason ?? this.reason;
    }
    this.show();
  }

  show() {
    const drafted = this.tokens - this.counts.target;
    const figures = {
      "Tokens": this.tokens,
      "Tokens/s": this.perSecond?.toFixed(1) ?? "-",
      "First token": this.first === null ? "-" : `${(this.first - this.began).toFixed(0)} ms`,
      "From drafts": this.tokens ? `${((100 * drafted) / this.tokens).toFixed(0)} %` : "-",
      "Acceptance": this.speculation ? this.speculation.draft_acceptance_rate.toFixed(2) : "-",
      "Ended by": this.reason || "-",
    };
    this.figures.replaceChildren(
      ...Object.entries(figures).map(([name, value]) => {
        const [group, term, said] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
        term.textContent = name;
        said.textContent = value;
        group.append(term, said);
        return group;
      }),
    );
    this.shares.replaceChildren(
      ...SOURCES.filter((source) => this.counts[source]).map((source) => {
        const bar = document.createElement("span");
        bar.className = source;
        bar.style.flexGrow = this.counts[source];
        return bar;
      }),
    );
  }
}

async function ask(section, asked, seed, more, signal) {
  const answer = new Answer(element(section));
  const response = await fetch(asked.messages ? "v1/chat/completions" : "v1/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify(body(asked, seed, more)),
    signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const event of events(response)) answer.take(event);
  return answer;
}

function showConversation() {
  element("conversation").hidden = element("clear").hidden = !isChat || !conversation.length;
  element("conversation").replaceChildren(
    ...conversation.map(({ role, content }) => {
      const item = document.createElement("li");
      const name = document.createElement("b");
      name.textContent = role;
      item.append(name, content);
      return item;
    }),
  );
}

function verdict(pair, alone) {
  const same = pair.text === alone.text ? "The same text." : "THE TEXTS DIFFER.";
  const ratio = pair.perSecond / alone.perSecond;
  return Number.isFinite(ratio) ? `${same} ${ratio.toFixed(2)} times the tokens per second.` : same;
}

async function run() {
  running = new AbortController();
  element("run").disabled = true;
  element("stop").disabled = false;
  element("error").hidden = true;
  element("verdict").textContent = "";
  new Answer(element("alone"));
  const content = element("prompt").value;
  const messages = [...conversation, { role: "user", content }];
  try {
    const asked = { ...(isChat ? { messages } : { prompt: content }), ...form() };
    const pair = await ask("speculative", asked, number("seed"), {}, running.signal);
    if (isChat) {
      conversation = [...messages, { role: "assistant", content: pair.text }];
      element("prompt").value = "";
      showConversation();
    }
    if (element("compare").checked) {
      const alone = await ask("alone", asked, pair.seed, { arm: "control" }, running.signal);
      element("verdict").textContent = verdict(pair, alone);
    }
  } catch (error) {
    element("error").textContent = error.name === "AbortError" ? "Stopped." : error.message;
    element("error").hidden = false;
  } finally {
    running = null;
    element("run").disabled = false;
    element("stop").disabled = true;
  }
}

function choose(chat) {
  isChat = chat;
  element("tab-chat").setAttribute("aria-selected", String(chat));
  element("tab-completion").setAttribute("aria-selected", String(!chat));
  element("prompt-label").textContent = chat ? "Message" : "Text to continue";
  showConversation();
}

async function showModel() {
  const response = await fetch("v1/models", { headers: headers() });
  if (response.ok) element("model").textContent = (await response.json()).data[0].id;
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) run();
});
element("stop").addEventListener("click", () => running?.abort());
element("clear").addEventListener("click", () => {
  conversation = [];
  showConversation();
});
element("tab-chat").addEventListener("click", () => choose(true));
element("tab-completion").addEventListener("click", () => choose(false));
element("key").addEventListener("change", showModel);
new Answer(element("speculative"));
new Answer(element("alone"));
showModel();
