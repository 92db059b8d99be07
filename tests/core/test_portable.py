"""Sources use what one processor has only behind a condition, and no page size of one system."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".h", ".cc", ".inc", ".cuh"}
X86 = r"mmintrin|_mm\d*_\w+\(|__m\d{3}|__builtin_ia32"
ARM = r"arm_neon|\bv\w+_[usf](8|16|32|64)\(|\b(uint|int|float)\d+x\d+_t\b|\basm\b.*\b(isb|fpcr)"
ONE_PROCESSOR = {
    re.compile(X86): re.compile(r"__x86_64__|__AVX|__F16C__"),
    re.compile(ARM): re.compile(r"__aarch64__"),
}
PAGE = re.compile(r"\bk?[Pp]age\w*\s*=\s*(4096|4\s*<<\s*10|65536)")


def uses(text: str) -> list[str]:
    """Every line that compiles or runs on one kind of processor or system only."""
    found: list[str] = []
    conditions: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        directive = re.match(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)", line)
        if directive is not None:
            word, condition = directive.groups()
            if word in ("elif", "else", "endif"):
                conditions.pop()
            if word != "endif":
                conditions.append(condition if word in ("if", "ifdef", "elif") else "")
            continue
        code = line.split("//")[0]
        for use, guard in ONE_PROCESSOR.items():
            if use.search(code) and not any(guard.search(one) for one in conditions):
                found.append(f"{number}: {line.strip()}")
        if PAGE.search(code):
            found.append(f"{number}: {line.strip()}: use page_size()")
    return found


def test_sources_compile_for_every_processor() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{use}"
        for top in ("csrc", "emulated", "bindings")
        for path in sorted((ROOT / top).rglob("*"))
        if path.suffix in SUFFIXES
        for use in uses(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "#include <emmintrin.h>",
        "#ifdef __x86_64__\n#else\n_mm_sfence();\n#endif",
        "#ifndef __x86_64__\n_mm_pause();\n#endif",
        "#ifdef __x86_64__\nvld1q_u8(a);\n#endif",
        "constexpr uintptr_t kPage = 4096;",
    ],
)
def test_a_use_without_its_condition_is_found(text: str) -> None:
    assert uses(text)
