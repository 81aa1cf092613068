"""Ask a server through litellm and print the answers as JSON: ``litellm_program.py URL MODEL REQUEST``.

REQUEST is that of ``langchain_program.py``.
"""

import copy
import json
import sys

import litellm

url, model, request = sys.argv[1:]
asked = json.loads(request)
SERVER = {"api_base": f"{url}/v1", "api_key": "none"}
GREEDY = {**SERVER, "temperature": 0, "max_tokens": 24}
MESSAGES = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Hello"}]
NAMED = {"type": "function", "function": {"name": asked["function"]}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
FORM = {"type": "json_schema", "json_schema": {"name": "weather", "schema": asked["schema"], "strict": True}}

litellm.suppress_debug_info = True


def chat(provider: str = "openai", name: str = model, **more: object) -> litellm.ModelResponse:
    return litellm.completion(model=f"{provider}/{name}", messages=MESSAGES, **GREEDY, **more)


def complete(**more: object) -> litellm.TextCompletionResponse:
    name = f"text-completion-openai/{model}"
    return litellm.text_completion(model=name, prompt="def area(", **GREEDY, **more)


streamed = list(chat(stream=True, stream_options={"include_usage": True}))
answer = chat()
assert streamed[-1].usage.completion_tokens == answer.usage.completion_tokens
try:
    chat(name="another")
    refusal = 0
except litellm.NotFoundError as error:
    refusal = error.status_code
as_vllm = chat("hosted_vllm", extra_body={"num_draft_tokens": 0})
answers = {
    "completion": complete().choices[0].text,
    "completion_stream": "".join(each.choices[0].text or "" for each in complete(stream=True)),
    "chat": answer.choices[0].message.content,
    "chat_stream": "".join(each.choices[0].delta.content or "" for each in streamed),
    "chat_as_vllm": as_vllm.choices[0].message.content,
    "usage": answer.usage.completion_tokens,
    "refusal": refusal,
}

messages, tools = asked["messages"], asked["tools"]


def call(provider: str = "openai", **more: object) -> litellm.ModelResponse:
    common = {**SERVER, "max_tokens": 120, "extra_body": asked["extra"]}
    return litellm.completion(model=f"{provider}/{model}", **{"messages": messages, **common, **more})


def calls_of(answer: litellm.ModelResponse) -> list[object]:
    calls = answer.choices[0].message.tool_calls
    return [[call.function.name, json.loads(call.function.arguments)] for call in calls]


required = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
answer = call(**required)
result = {"role": "tool", "tool_call_id": answer.choices[0].message.tool_calls[0].id, "content": "noon"}
history = [*messages, answer.choices[0].message.model_dump(), result]
calls = {
    "required": calls_of(answer),
    "streamed": calls_of(litellm.stream_chunk_builder(list(call(**required, stream=True)))),
    "named": calls_of(call(tools=tools, tool_choice=NAMED)),
    # As its own argument, litellm refuses this choice.
    "allowed": calls_of(call(tools=tools, extra_body={**asked["extra"], "tool_choice": ALLOWED})),
    "reason": answer.choices[0].finish_reason,
    "tokens_with_result": call(
        messages=history, tools=tools, tool_choice="none", max_tokens=1
    ).usage.prompt_tokens,
}
# As such a provider, litellm takes additionalProperties out of the list that it is given.
[[name, _]] = calls_of(call("hosted_vllm", **{**required, "tools": copy.deepcopy(tools)}))
assert name in [tool["function"]["name"] for tool in tools]
form = json.loads(call(response_format=FORM).choices[0].message.content)
print(json.dumps({"answers": answers, "calls": calls, "form": form}))
