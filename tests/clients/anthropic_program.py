"""Ask a server through Anthropic's client and print the answers as JSON.

``anthropic_program.py URL MODEL REQUEST``, whose REQUEST is that of ``langchain_program.py``.
"""

import json
import re
import sys

import anthropic

url, model, request = sys.argv[1:]
asked = json.loads(request)
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
HELLO = {"model": model, "system": "Answer.", "messages": [{"role": "user", "content": "Hello"}]}
GREEDY = {**HELLO, "max_tokens": 24, "extra_body": {"temperature": 0}}

answer = client.messages.create(**GREEDY)
[block] = answer.content
with client.messages.stream(**GREEDY) as stream:
    streamed = "".join(stream.text_stream)
    assert stream.get_final_message().usage.output_tokens == answer.usage.output_tokens
try:
    client.messages.create(**{**GREEDY, "model": "another"})
    refusal = 0
except anthropic.NotFoundError as error:
    refusal = error.status_code
    assert error.body["error"]["type"] == "not_found_error" and error.request_id == error.body["request_id"]
counted = client.messages.count_tokens(**HELLO).input_tokens
assert counted == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
word = max(re.findall("[ -~]+", block.text), key=len)[-3:]
stopped = client.messages.create(**GREEDY, stop_sequences=["never", word])
assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)
assert "".join(part.text for part in stopped.content) == block.text.partition(word)[0]
answers = {
    "chat": block.text,
    "chat_stream": streamed,
    "usage": answer.usage.output_tokens,
    "refusal": refusal,
}

messages, nothing = asked["messages"], {"type": "object", "properties": {}, "additionalProperties": False}
tools = [
    {"input_schema": tool.pop("parameters", nothing), **tool}
    for tool in (each["function"] for each in asked["tools"])
]
common = {"model": model, "messages": messages, "max_tokens": 120, "extra_body": asked["extra"]}


def calls_of(answer: anthropic.types.Message) -> list[object]:
    return [[block.name, block.input] for block in answer.content if block.type == "tool_use"]


required = {**common, "tools": tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
answer = client.messages.create(**required)
with client.messages.stream(**required) as stream:
    final = stream.get_final_message()
[call] = [block for block in answer.content if block.type == "tool_use"]
result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "noon"}]}
history = [*messages, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
told = {"tools": tools, "tool_choice": {"type": "none"}, "max_tokens": 1}
after = client.messages.create(**{**common, "messages": history, **told})
thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "extra_body": {"seed": 5}}
thought = client.messages.create(**{**common, **thinking, "tools": tools, "tool_choice": {"type": "none"}})
assert thought.content[0].type == "thinking" and thought.content[0].signature, thought
again = [*messages, {"role": "assistant", "content": thought.content}, *messages]
assert client.messages.create(**{**common, "messages": again, **told}).usage.output_tokens <= 1
calls = {
    "required": calls_of(answer),
    "streamed": calls_of(final),
    "named": calls_of(
        client.messages.create(**{**required, "tool_choice": {"type": "tool", "name": asked["function"]}})
    ),
    "reason": {"tool_use": "tool_calls"}[answer.stop_reason],
    "tokens_with_result": after.usage.input_tokens + after.usage.cache_read_input_tokens,
}
form = {"format": {"type": "json_schema", "schema": asked["schema"]}}
written = client.messages.create(**common, output_config=form).content[0].text
print(json.dumps({"answers": answers, "calls": calls, "form": json.loads(written)}))
