"""headwise for agents: an MCP server with typed tools over the models, data and runs that its user names.

    headwise mcp --model smollm2 --data mine=prompts.jsonl --runs runs

The server speaks over its standard input and output. One thread owns the models, every size is limited, nothing is
loaded or read that was not named at the start, and a cancelled call stops at its next layer. Begin with `tools.py`
(what each tool does and may use); `answers.py` has what they take and answer, `server.py` how they are served. May
import: everything.
"""
