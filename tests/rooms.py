"""The import graph of src/headwise, and how large its parts are: `python tests/rooms.py` prints both.

Every import counts: at the top of a file, inside a function, for types alone. Room tables are data, so that a move of
files changes the table and nothing else. tests/test_rooms.py says what must hold; what does not hold yet is listed in
tests/rooms_violations.txt, and `python tests/rooms.py --violations` prints the list as it would be now.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "headwise"

# ---- rooms: which files they have, and what they may import --------------------------------------------------------

ROOM_OF: dict[str, str] = {
    "__init__.py": "public", "__main__.py": "cli", "_version.py": "errors",
    "errors.py": "errors", "errors": "errors",
    "files.py": "files", "bounded.py": "files", "files": "files",
    "registry.py": "registry", "registry": "registry",
    "hub.py": "hub", "hub": "hub",
    "stats": "stats", "tables": "tables", "charts": "charts", "heads": "heads", "tasks": "tasks", "model": "model",
    "metrics": "metrics", "scores": "scores", "cards": "cards", "sweeps": "sweeps", "certificates": "certificates",
    "studies": "studies", "runs": "runs",
    "studies/*/section.py": "study pages", "studies/*/findings.py": "study pages", "studies/*/inside.py": "study pages",
    "report": "report", "explorer": "explorer", "sparsify": "sparsify", "cli": "cli",
    "arguments.py": "registry", "settings.py": "registry", "progress.py": "files",
    "harness.py": "cli", "mcp": "cli", "comparing.py": "cli", "display.py": "files", "names.py": "files",
    "register.py": "public",
}  # fmt: skip
"""Room by path below src/headwise: a file, or a folder with all that is in it. `*` stands for one folder; the longest
path that fits wins."""

_GROUND = frozenset({"errors", "files", "registry", "hub", "stats"})
_TABLES = _GROUND | {"tables"}
_MODEL = _TABLES | {"heads", "tasks"}
_METRICS = _MODEL | {"model"}
_SCORES = _METRICS | {"metrics"}
_SWEEPS = _SCORES | {"scores"}
_STUDIES = _SWEEPS | {"charts", "sweeps", "certificates", "runs", "cards", "report", "study pages"}
_ALL = _STUDIES | {"studies", "sparsify", "explorer", "cli", "public"}
MAY_IMPORT: dict[str, frozenset[str]] = {
    **dict.fromkeys(_GROUND, _GROUND),
    "tables": _GROUND,
    "charts": _TABLES,
    "heads": _TABLES,
    "tasks": _TABLES,
    "model": _MODEL,
    "metrics": _METRICS,
    "scores": _SCORES,
    "sweeps": _SWEEPS,
    "certificates": _SWEEPS | {"sweeps"},
    "cards": _SWEEPS | {"charts", "runs"},
    "runs": _TABLES,
    "study pages": _TABLES | {"charts", "heads"},
    "report": _TABLES | {"charts", "runs", "study pages"},
    "studies": _STUDIES,
    "sparsify": _STUDIES - {"report", "study pages"},
    "explorer": _STUDIES | {"studies"},
    "cli": _ALL,
    "public": _ALL,
}
"""errors, files, registry, hub, stats ← tables ← heads, tasks ← model ← metrics ← scores ← sweeps, cards ← studies ←
cli, explorer. charts imports the first group and tables; cards and what comes after it import charts. runs imports the
first group and tables; what the report reads of a study imports charts and heads."""
DRAWING = frozenset({"plot", "_repr_png_"})
"""The methods with which a result draws itself: in them, rooms above tables may import charts."""


def room(path: str) -> str:
    """The room of a file, given below src/headwise.

    >>> room("model/engine.py"), room("studies/masking/section.py"), room("studies/masking/study.py")
    ('model', 'study pages', 'studies')
    """
    parts = path.split("/")
    fitting = [
        prefix
        for prefix in ROOM_OF
        if len(prefix.split("/")) <= len(parts)
        and all(fnmatch(part, wanted) for part, wanted in zip(parts, prefix.split("/"), strict=False))
    ]
    if not fitting:
        raise KeyError(f"{path} stands in no room; add it to ROOM_OF in tests/rooms.py")
    return ROOM_OF[max(fitting, key=len)]


# ---- imports --------------------------------------------------------------------------------------------------------


@cache
def trees(source: Path = SOURCE) -> dict[str, ast.Module]:
    """Every file by its path below the source folder."""
    return {
        file.relative_to(source).as_posix(): ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(source.rglob("*.py"))
    }


def imports(path: str, tree: ast.Module, files: Mapping[str, object], *, drawing: bool = True) -> set[str]:
    """The files of the package that a file imports, anywhere in it; drawing=False: outside the methods in `DRAWING`.

    `from headwise.stats import bootstrap` is an import of the module stats/bootstrap.py where there is one, else of
    stats/__init__.py.
    """
    package = ("headwise", *path.split("/")[:-1])
    found: set[str] = set()
    for node in _nodes(tree, drawing):
        if isinstance(node, ast.Import):
            found |= {file for alias in node.names if (file := _file(alias.name.split("."), files))}
        elif isinstance(node, ast.ImportFrom):
            named = node.module.split(".") if node.module else []
            start = list(package[: len(package) - node.level + 1]) if node.level else []
            for alias in node.names:
                whole = _file([*start, *named, alias.name], files) or _file([*start, *named], files)
                found |= {whole} if whole else set()
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = node.args[0]
            if isinstance(name, ast.Constant) and (file := _file(str(name.value).split("."), files)):
                found.add(file)
    return found - {path}


def _nodes(node: ast.AST, drawing: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if drawing or not (isinstance(child, ast.FunctionDef) and child.name in DRAWING):
            yield child
            yield from _nodes(child, drawing)


def _file(parts: list[str], files: Mapping[str, object]) -> str | None:
    if not parts or parts[0] != "headwise":
        return None
    below = "/".join(parts[1:])
    for file in (f"{below}.py", f"{below}/__init__.py" if below else "__init__.py"):
        if file in files:
            return file
    return None


def file_graph(files: Mapping[str, ast.Module], *, drawing: bool = True) -> dict[str, set[str]]:
    return {path: imports(path, tree, files, drawing=drawing) for path, tree in files.items()}


def room_graph(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path, wanted in graph.items():
        found.setdefault(room(path), set()).update(room(other) for other in wanted)
    return {name: wanted - {name} for name, wanted in found.items()}


def forbidden(files: Mapping[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Imports against the arrows, each as the file and what it imports."""
    outside = file_graph(files, drawing=False)
    for path, wanted in file_graph(files).items():
        may = MAY_IMPORT[room(path)] | {room(path)}
        for other in sorted(wanted):
            draws_itself = (
                room(other) == "charts" and other not in outside[path] and room(path) not in _TABLES
            )
            if room(other) not in may and not draws_itself:
                yield path, other


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that reach one another (Tarjan's strongly connected components of two or more)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            members = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return sorted(found)


# ---- sizes ----------------------------------------------------------------------------------------------------------

MOST_MODULES, MOST_FILE_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS = 15, 400, 60, 8
MOST_STUDY_LINES = 80
"""A study is read from top to bottom, as its own explanation."""


@dataclass(frozen=True)
class Size:
    """Something that is larger than it should be."""

    what: str
    """`folder model`, `file cli.py`, `function cli.py:score`, `parameters cli.py:score`."""
    size: int


def oversized(source: Path = SOURCE) -> Iterator[Size]:
    """Folders, files, functions and parameter lists beyond the limits; of the command line only folders and files."""
    files = trees(source)
    modules = Counter(
        path.rpartition("/")[0] or "." for path in files if not path.endswith(("__init__.py", "__main__.py"))
    )
    yield from (Size(f"folder {name}", n) for name, n in sorted(modules.items()) if n > MOST_MODULES)
    for path, tree in files.items():
        lines = len((source / path).read_text(encoding="utf-8").splitlines())
        if lines > MOST_FILE_LINES:
            yield Size(f"file {path}", lines)
        if room(path) == "cli":
            continue
        for name, function in _functions(tree):
            lines = (function.end_lineno or 0) - function.lineno + 1 - _docstring_lines(function)
            if lines > (MOST_STUDY_LINES if _decorated(function, "study") else MOST_FUNCTION_LINES):
                yield Size(f"function {path}:{name}", lines)
            parameters = function.args
            count = sum(map(len, (parameters.posonlyargs, parameters.args, parameters.kwonlyargs)))
            first = [*parameters.posonlyargs, *parameters.args][:1]
            count -= bool(first and first[0].arg in ("self", "cls", "job"))
            if count > MOST_PARAMETERS and not _decorated(function, "overload"):
                yield Size(f"parameters {path}:{name}", count)


def _decorated(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    decorators = (ast.unparse(decorator).partition("(")[0] for decorator in function.decorator_list)
    return any(decorator.endswith(name) for decorator in decorators)


def _functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            qualified = f"{name}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                yield qualified, child
            yield from _functions(child, qualified)
        else:
            yield from _functions(child, name)


def _docstring_lines(node: ast.AST) -> int:
    body = getattr(node, "body", [])
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return (body[0].end_lineno or 0) - body[0].lineno + 1
    return 0


def code_lines(text: str) -> int:
    """Lines that hold code: not blank, no comment alone, and not part of a text that stands as a statement of its own.

    >>> code_lines('"A docstring."\\n\\nx = 1  # one\\n# a remark\\ny = [\\n    2,\\n]\\n')
    4
    """
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            prose |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - prose)


# ---- what does not hold yet -----------------------------------------------------------------------------------------


def violations(source: Path = SOURCE) -> dict[str, int]:
    """Everything that breaks a rule, in words, with its size (0 where it has none)."""
    graph = file_graph(trees(source))
    found = {f"import {path} -> {other}": 0 for path, other in forbidden(trees(source))}
    found |= {f"cycle of rooms: {', '.join(members)}": 0 for members in cycles(room_graph(graph))}
    found |= {f"cycle of files: {', '.join(members)}": 0 for members in cycles(graph)}
    return found | {one.what: one.size for one in oversized(source)}


def read_violations(text: str) -> dict[str, int]:
    """A list of them: one a line, its size behind ` = `; what follows two spaces and a # says why.

    >>> read_violations("# all\\nfile cli.py = 463  # one command each\\nimport a.py -> b.py\\n")
    {'file cli.py': 463, 'import a.py -> b.py': 0}
    """
    lines = [line.partition("  #")[0].strip() for line in text.splitlines() if not line.startswith("#")]
    pairs = [line.partition(" = ") for line in lines if line]
    return {what: int(size or 0) for what, _, size in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "--violations", action="store_true", help="print what tests/rooms_violations.txt lists"
    )
    if parser.parse_args().violations:
        print("\n".join(f"{what} = {size}" if size else what for what, size in violations().items()))
        return
    files = trees()
    graph = file_graph(files)
    size: Counter[str] = Counter()
    for path in files:
        size[room(path)] += code_lines((SOURCE / path).read_text(encoding="utf-8"))
    rooms = room_graph(graph)
    wrong = {(room(path), room(other)) for path, other in forbidden(files)}
    print(f"{'room':<12} {'code':>6} {'files':>6}  imports (! against the arrows)")
    for name in sorted(rooms, key=lambda one: (len(MAY_IMPORT[one]), one)):
        shown = [f"{other}{'!' if (name, other) in wrong else ''}" for other in sorted(rooms[name])]
        count = sum(room(path) == name for path in files)
        print(f"{name:<12} {size[name]:>6} {count:>6}  {', '.join(shown)}")
    print(f"{'all':<12} {size.total():>6} {len(files):>6}")
    print(f"\n{len(list(forbidden(files)))} imports against the arrows")
    for title, one in (("rooms", rooms), ("files", graph)):
        for members in cycles(one):
            print(f"cycle of {title}: {', '.join(members)}")


if __name__ == "__main__":
    main()
