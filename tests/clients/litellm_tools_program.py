"""Let a model call tools through litellm: ``litellm_tools_program.py URL MODEL REQUEST``.

REQUEST is JSON with ``messages``, ``tools``, ``function`` and ``schema`` (name and parameters of one of
them), and ``extra``, fields of the body. Prints JSON.
"""

import copy
import json
import sys

import litellm

url, model, request = sys.argv[1:]
asked = json.loads(request)
messages, tools = asked["messages"], asked["tools"]
NAMED = {"type": "function", "function": {"name": asked["function"]}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
FORM = {"type": "json_schema", "json_schema": {"name": "weather", "schema": asked["schema"], "strict": True}}

litellm.suppress_debug_info = True


def chat(provider: str = "openai", **more: object) -> litellm.ModelResponse:
    common = {"api_base": f"{url}/v1", "api_key": "none", "max_tokens": 120, "extra_body": asked["extra"]}
    return litellm.completion(model=f"{provider}/{model}", **{"messages": messages, **common, **more})


def calls_of(answer: litellm.ModelResponse) -> list[object]:
    calls = answer.choices[0].message.tool_calls
    return [[call.function.name, json.loads(call.function.arguments)] for call in calls]


required = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
answer = chat(**required)
streamed = litellm.stream_chunk_builder(list(chat(**required, stream=True)))
call = answer.choices[0].message.tool_calls[0]
history = [
    *messages,
    answer.choices[0].message.model_dump(),
    {"role": "tool", "tool_call_id": call.id, "content": "noon"},
]
after = chat(messages=history, tools=tools, tool_choice="none", max_tokens=1)
print(
    json.dumps(
        {
            "required": calls_of(answer),
            "streamed": calls_of(streamed),
            # As such a provider, litellm takes additionalProperties out of the list that it is given.
            "as_vllm": calls_of(chat("hosted_vllm", **{**required, "tools": copy.deepcopy(tools)})),
            "named": calls_of(chat(tools=tools, tool_choice=NAMED)),
            # As its own argument, litellm refuses this choice.
            "allowed": calls_of(chat(tools=tools, extra_body={**asked["extra"], "tool_choice": ALLOWED})),
            "reason": answer.choices[0].finish_reason,
            "tokens_with_result": after.usage.prompt_tokens,
            "form": json.loads(chat(response_format=FORM).choices[0].message.content),
        }
    )
)
