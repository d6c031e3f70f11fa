"""Comments beside parameters and fields become their descriptions, errors in the body are listed.

The package's signatures say in a trailing comment what a parameter is, as nbdev reads it. This
extension of griffe, on which mkdocstrings builds, reads them too, without running the module.
"""

import ast
import io
import re
import tokenize

import griffe


def trailing_comments(source: str) -> dict[int, str]:
    "Line → the comment at its end, for lines that hold code too."
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line.strip() != token.string:
            found[token.start[0]] = token.string.lstrip("# ").strip()
    return found


def message_of(node: ast.Raise) -> tuple[str, str] | None:
    "Name of an error and its message, with the expressions that fill it in."
    error = node.exc
    if not isinstance(error, ast.Call) or not isinstance(error.func, ast.Name) or not error.args:
        return None
    text = error.args[0]
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return error.func.id, text.value
    if not isinstance(text, ast.JoinedStr):
        return None
    parts = []
    for part in text.values:
        if isinstance(part, ast.Constant):
            parts.append(part.value)
        else:
            parts.append("{" + ast.unparse(part.value) + "}")
    return error.func.id, "".join(parts)


def described(source: str) -> tuple[dict[str, str], str | None, list[tuple[str, str]]]:
    """Of a function's source: what its parameters are, what it returns, the errors that it raises.

    All parameters where one has a comment, for a list that leaves some out misleads.
    """
    function = ast.parse(source).body[0]
    comments = trailing_comments(source)
    arguments = function.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    listed += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    body = function.body[0].lineno
    lines = {one.arg: one.end_lineno for one in listed if one.arg not in ("self", "cls")}
    parameters = {name: comments.get(at, "") if at < body else "" for name, at in lines.items()}
    if not any(parameters.values()):  # described in the text alone, if at all
        parameters = {}
    returned = None
    if function.returns is not None and function.returns.end_lineno != function.lineno:
        returned = comments.get(function.returns.end_lineno)
    raised = [node for node in ast.walk(function) if isinstance(node, ast.Raise)]
    found = [message_of(node) for node in sorted(raised, key=lambda node: node.lineno)]
    return parameters, returned, [error for error in dict.fromkeys(found) if error]


def shapes_kept(text: str) -> str:
    "Text in which the star of a shape, as in [*B, D], does not begin an emphasis."
    return re.sub(r"(`[^`]*`)|(?<!\*)\*(?=[A-Z,])", lambda found: found[1] or r"\*", text)


def section(title: str, entries: list[tuple[str, str]]) -> str:
    "A section of a docstring in Google's style; nothing where there is nothing to list."
    lines = [f"    {name}: {shapes_kept(text)}".rstrip() for name, text in entries]
    return "\n".join(["", "", f"{title}:", *lines]) if entries else ""


class Comments(griffe.Extension):
    "Descriptions of parameters, fields and errors from the source."

    def on_function(self, *, func: griffe.Function, **kwargs):
        if not func.source:  # an __init__ that a dataclass makes
            return
        parameters, returned, errors = described(func.source)
        text = shapes_kept(func.docstring.value) if func.docstring else ""
        text += section("Args", list(parameters.items()))
        text += section("Returns", [(str(func.returns), returned)] if returned else [])
        text += section("Raises", [(name, f"`{message}`") for name, message in errors])
        if text:
            func.docstring = griffe.Docstring(
                text, parent=func, parser=griffe.Parser.google, parser_options={"warnings": False}
            )

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs):
        if attr.docstring is None and attr.lines:
            comments = trailing_comments(attr.source + "\n")
            if comments:
                attr.docstring = griffe.Docstring(shapes_kept(comments[max(comments)]), parent=attr)
