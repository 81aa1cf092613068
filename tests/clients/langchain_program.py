"""Ask a server through langchain-openai and print JSON: ``langchain_program.py URL MODEL REQUEST``.

REQUEST is JSON with ``messages``, ``tools``, ``function`` and ``schema`` (name and parameters of one of
them), and ``extra``, fields of the body.
"""

import asyncio
import json
import sys

import openai
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI

url, model, request = sys.argv[1:]
asked = json.loads(request)
SERVER = {"base_url": f"{url}/v1", "api_key": "none", "model": model, "max_retries": 0}
GREEDY = {**SERVER, "temperature": 0, "max_tokens": 24}
MESSAGES = [("system", "Answer."), ("human", "Hello")]
NAMED = {"type": "function", "function": {"name": asked["function"]}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


def calls_of(answer: BaseMessage) -> list[object]:
    assert not answer.invalid_tool_calls, answer
    return [[call["name"], call["args"]] for call in answer.tool_calls]


text, chat = OpenAI(**GREEDY), ChatOpenAI(**GREEDY)
answer = chat.invoke(MESSAGES)
try:
    ChatOpenAI(**{**GREEDY, "model": "another"}).invoke(MESSAGES)
    refusal = 0
except openai.NotFoundError as error:
    refusal = error.status_code
answers = {
    "completion": text.invoke("def area("),
    "completion_stream": "".join(text.stream("def area(")),
    "chat": answer.content,
    "chat_stream": "".join(chunk.content for chunk in chat.stream(MESSAGES)),
    "usage": answer.usage_metadata["output_tokens"],
    "refusal": refusal,
}

messages, tools = asked["messages"], asked["tools"]
with_tools = {**SERVER, "max_tokens": 120, "extra_body": asked["extra"]}
caller = ChatOpenAI(**with_tools)
required = caller.bind_tools(tools, tool_choice="required", parallel_tool_calls=False)
answer = required.invoke(messages)
first, *others = required.stream(messages)
for chunk in others:
    first += chunk
result = ToolMessage("noon", tool_call_id=answer.tool_calls[0]["id"])
after = caller.bind_tools(tools, tool_choice="none", max_tokens=1).invoke([*messages, answer, result])
form = caller.with_structured_output({"title": "weather", **asked["schema"]})
responses = ChatOpenAI(**with_tools, use_responses_api=True).bind_tools(tools, tool_choice="required")


async def ask_later() -> tuple[BaseMessage, BaseMessage]:
    """Ask on one event loop, to which the client's connections belong."""
    return await chat.ainvoke(MESSAGES), await required.ainvoke(messages)


later, later_call = asyncio.run(ask_later())
answers["chat_async"] = later.content
calls = {
    "required": calls_of(answer),
    "streamed": calls_of(first),
    "async": calls_of(later_call),
    "named": calls_of(caller.bind_tools(tools, tool_choice=asked["function"]).invoke(messages)),
    "allowed": calls_of(caller.bind_tools(tools, tool_choice=ALLOWED).invoke(messages)),
    "responses": calls_of(responses.invoke(messages, parallel_tool_calls=False)),
    "reason": answer.response_metadata["finish_reason"],
    "tokens_with_result": after.usage_metadata["input_tokens"],
}
print(json.dumps({"answers": answers, "calls": calls, "form": form.invoke(messages)}))
