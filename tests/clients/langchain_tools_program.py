"""Let a model call tools through langchain-openai: ``langchain_tools_program.py URL MODEL REQUEST``.

REQUEST is JSON with ``messages``, ``tools``, ``function`` and ``schema`` (name and parameters of one of
them), and ``extra``, fields of the body. Prints JSON.
"""

import asyncio
import json
import sys

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_openai import ChatOpenAI

url, model, request = sys.argv[1:]
asked = json.loads(request)
COMMON = {
    "base_url": f"{url}/v1",
    "api_key": "none",
    "model": model,
    "max_tokens": 120,
    "max_retries": 0,
    "extra_body": asked["extra"],
}
messages, tools = asked["messages"], asked["tools"]
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": asked["function"]}}],
    },
}


def calls_of(answer: BaseMessage) -> list[object]:
    assert not answer.invalid_tool_calls, answer
    return [[call["name"], call["args"]] for call in answer.tool_calls]


chat = ChatOpenAI(**COMMON)
required = chat.bind_tools(tools, tool_choice="required", parallel_tool_calls=False)
answer = required.invoke(messages)
first, *others = required.stream(messages)
for chunk in others:
    first += chunk
result = ToolMessage("noon", tool_call_id=answer.tool_calls[0]["id"])
after = chat.bind_tools(tools, tool_choice="none", max_tokens=1).invoke([*messages, answer, result])
form = chat.with_structured_output({"title": "weather", **asked["schema"]})
responses = ChatOpenAI(**COMMON, use_responses_api=True).bind_tools(tools, tool_choice="required")
print(
    json.dumps(
        {
            "required": calls_of(answer),
            "streamed": calls_of(first),
            "async": calls_of(asyncio.run(required.ainvoke(messages))),
            "named": calls_of(chat.bind_tools(tools, tool_choice=asked["function"]).invoke(messages)),
            "allowed": calls_of(chat.bind_tools(tools, tool_choice=ALLOWED).invoke(messages)),
            "responses": calls_of(responses.invoke(messages, parallel_tool_calls=False)),
            "reason": answer.response_metadata["finish_reason"],
            "tokens_with_result": after.usage_metadata["input_tokens"],
            "form": form.invoke(messages),
        }
    )
)
