"""Chat templates with tools, written here after those of Llama 3.1 and Mistral; none is a copy.

That of Qwen 3 is ``tests.support.chat_templates.CHATML``.
"""

from __future__ import annotations

LLAMA_3_1 = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' }}
        {%- if loop.first and tools %}
            {{- 'Respond in the format {"name": function name, "parameters": dictionary}.\\n\\n' }}
            {%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ '\\n\\n' }}{% endfor %}
        {%- endif %}
        {{- message.content | trim ~ '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set function = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' ~ function.name ~ '", "parameters": ' ~ (function.arguments | tojson) ~ '}' }}
        {{- '<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' ~ message.content ~ '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' }}
        {{- message.content | trim ~ '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

_MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.first %}
            {{- '[AVAILABLE_TOOLS]' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' ~ message.content ~ '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls %}
        %CALLS%
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' ~ ({'content': message.content, 'call_id': message.tool_call_id} | tojson) }}
        {{- '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content ~ eos_token }}
    {%- endif %}
{%- endfor %}
"""
_CHECK = """\
{%- if call.id is not defined or call.id | length != 9 %}
            {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
        {%- endif %}"""

MISTRAL_3 = _MISTRAL.replace(
    "%CALLS%",
    "{{- '[TOOL_CALLS] [' }}{% for call in message.tool_calls %}"
    + _CHECK
    + '{{- \'{"name": "\' ~ call.function.name ~ \'", "arguments": \' }}'
    "{{- (call.function.arguments | tojson) ~ '}' ~ (']' if loop.last else ', ') }}{% endfor %}",
)
MISTRAL_11 = _MISTRAL.replace(
    "%CALLS%",
    "{%- for call in message.tool_calls %}"
    + _CHECK
    + "{{- '[TOOL_CALLS]' ~ call.function.name ~ '[CALL_ID]' ~ call.id ~ '[ARGS]' }}"
    "{{- call.function.arguments | tojson }}{% endfor %}",
)
