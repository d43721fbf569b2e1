"""YamlFile: a configuration file that knows the line of each of its keys."""

from pathlib import Path

import yaml

Location = tuple[str | int, ...]
KEY_TAGS = frozenset({"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"})


class YamlFile:
    """A YAML file: its content, the line of each key, and what is wrong with it."""

    def __init__(self, content: dict[str, object], lines: dict[Location, int], name: str) -> None:
        self.content = content
        self.lines = lines
        self.name = name
        self.mistakes: list[str] = []

    @classmethod
    def read(cls, path: Path) -> "YamlFile":
        """Return the file; what is wrong with it as YAML stands in `mistakes`."""
        document = cls({}, {}, str(path))
        try:
            document._take_in(path.read_text(encoding="utf-8"))
        except OSError as error:
            document.mistakes.append(f"{path}: cannot be read ({error.strerror})")
        except UnicodeDecodeError:
            document.mistakes.append(f"{path}: is not UTF-8 text")
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            tab = ": indent with spaces" if "'\\t'" in (error.problem or "") else ""
            document.mistakes.append(f"{path}:{line}: is not YAML: {error.problem}{tab}")
        except yaml.YAMLError as error:
            document.mistakes.append(f"{path}: is not YAML: {error}")
        except RecursionError:
            document.mistakes.append(f"{path}: is nested too deeply")
        except ValueError as error:  # what looks like a date or a number, and is none
            document.mistakes.append(f"{path}: holds a value that is none: {error}")
        return document

    def _take_in(self, text: str) -> None:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            self.mistakes.append(f"{self.name}:1: must hold keys such as `backends:`")
            return
        self._walk(node, ())
        if not self.mistakes:
            self.content = yaml.safe_load(text)

    def line_of(self, location: Location) -> int | None:
        """Return the line of a key, or of the nearest thing around it."""
        while location:
            if location in self.lines:
                return self.lines[location]
            location = location[:-1]
        return None

    def _walk(self, node: yaml.Node, location: Location) -> None:
        self.lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = (*location, str(key.value))
                line = key.start_mark.line + 1
                if key.tag not in KEY_TAGS:
                    self.mistakes.append(
                        f"{self.name}:{line}: {dotted(here)} is no text: put the key in quotes"
                    )
                if here in self.lines:
                    self.mistakes.append(f"{self.name}:{line}: {dotted(here)} is given twice")
                self.lines[here] = line
                self._walk(value, here)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._walk(value, (*location, index))


def dotted(location: Location) -> str:
    """Return a key's place as people write it."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
