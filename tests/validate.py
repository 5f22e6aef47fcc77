#!/usr/bin/python3
"""Validates documents against schemas/: a line "ok FILE" or "bad FILE: PLACE: WHY" each.

    validate.py [--schema NAME.json] FILE...

NAME is one of schemas/ (document.json). The exit status is 1 if any is bad. Debian's python3-jsonschema is all that it needs.
"""
import json
import pathlib
import sys

import jsonschema

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "schemas"


def validator(name):
    store = {}
    for path in sorted(FOLDER.glob("*.json")):
        schema = json.loads(path.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        store[path.as_uri()] = schema
        if "$id" in schema:
            store[schema["$id"]] = schema
    uri = (FOLDER / name).as_uri()
    root = store[uri]
    resolver = jsonschema.RefResolver(root.get("$id", uri), root, store=store)
    return jsonschema.Draft202012Validator(root, resolver=resolver)


def main(paths):
    name = "document.json"
    if paths[:1] == ["--schema"]:
        name, paths = paths[1], paths[2:]
    check = validator(name)
    bad = False
    for path in paths:
        error = next(check.iter_errors(json.loads(pathlib.Path(path).read_text())), None)
        if error is None:
            print(f"ok {path}")
            continue
        bad = True
        place = "".join(f"/{p}" for p in error.absolute_path)
        print(f"bad {path}: {place or '/'}: {error.message[:200]}")
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
