"""The code that names a kernel when its code faults: a handler of signals (Linux).

`fault(signal, information, context, register)` looks for the program counter in the kernels that
run, writes what is said of the kernel to the standard error stream, restores the handler that was
there before, and returns: the instruction faults again, and that handler ends the process.

The register is memory: `HEAD_BYTES`, and a list of images (`Image`), each with its kernels, of
`KERNEL_BYTES` (begin, end, text and length of text), and the words in which runs say which kernel
they are at.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

SIGNALS: Final = 65


class Head(IntEnum):
    """The bytes of the register, by place."""

    WRITE = 0
    SIGACTION = 8
    """The functions of the C library."""

    FIRST = 16
    """The first image, or null."""

    BEFORE = 24
    """For each signal, the action that was there before, or null."""


HEAD_BYTES: Final = Head.BEFORE + 8 * SIGNALS

MOST_WORDS: Final = 64
KERNEL_BYTES: Final = 32


class Image(IntEnum):
    """The bytes of an image, by place."""

    NEXT = 0
    KERNELS = 8
    COUNT = 16
    """An int64: how many kernels there are."""

    WORDS = 24
    """Pointers to words; null for none."""


IMAGE_BYTES: Final = Image.WORDS + 8 * MOST_WORDS

COUNTER: Final = {"x86_64": 168, "aarch64": 440}
"""Where `ucontext_t` of Linux has the program counter."""


def handler(architecture: str) -> str:
    """The text of `fault`."""
    return f"""
define void @fault(i32 %signal, ptr %information, ptr %context, ptr %register) noinline nounwind {{
entry:
  %counter.at = getelementptr i8, ptr %context, i64 {COUNTER[architecture]}
  %counter = load i64, ptr %counter.at, align 8
  %first.at = getelementptr i8, ptr %register, i64 {Head.FIRST}
  br label %look
look:
  %image.at = phi ptr [%first.at, %entry], [%image, %next]
  %image = load ptr, ptr %image.at, align 8
  %none = icmp eq ptr %image, null
  br i1 %none, label %leave, label %open
open:
  %kernels.at = getelementptr i8, ptr %image, i64 {Image.KERNELS}
  %kernels = load ptr, ptr %kernels.at, align 8
  %count.at = getelementptr i8, ptr %image, i64 {Image.COUNT}
  %count = load i64, ptr %count.at, align 8
  br label %words
words:
  %place = phi i64 [0, %open], [%place.next, %other]
  %offset = mul i64 %place, 8
  %offset.word = add i64 %offset, {Image.WORDS}
  %word.at = getelementptr i8, ptr %image, i64 %offset.word
  %word = load ptr, ptr %word.at, align 8
  %empty = icmp eq ptr %word, null
  br i1 %empty, label %other, label %read
read:
  %number = load i64, ptr %word, align 8
  %known = icmp ult i64 %number, %count
  br i1 %known, label %compare, label %other
compare:
  %offset.kernel = mul i64 %number, {KERNEL_BYTES}
  %kernel = getelementptr i8, ptr %kernels, i64 %offset.kernel
  %begin = load i64, ptr %kernel, align 8
  %end.at = getelementptr i8, ptr %kernel, i64 8
  %end = load i64, ptr %end.at, align 8
  %after = icmp uge i64 %counter, %begin
  %before = icmp ult i64 %counter, %end
  %inside = and i1 %after, %before
  br i1 %inside, label %say, label %other
say:
  %text.at = getelementptr i8, ptr %kernel, i64 16
  %text = load ptr, ptr %text.at, align 8
  %length.at = getelementptr i8, ptr %kernel, i64 24
  %length = load i64, ptr %length.at, align 8
  %write.at = getelementptr i8, ptr %register, i64 {Head.WRITE}
  %write = load ptr, ptr %write.at, align 8
  call i64 %write(i32 2, ptr %text, i64 %length)
  br label %leave
other:
  %place.next = add nuw nsw i64 %place, 1
  %more = icmp ult i64 %place.next, {MOST_WORDS}
  br i1 %more, label %words, label %next
next:
  br label %look
leave:
  %wide = zext i32 %signal to i64
  %offset.old = mul i64 %wide, 8
  %offset.before = add i64 %offset.old, {Head.BEFORE}
  %old.at = getelementptr i8, ptr %register, i64 %offset.before
  %old = load ptr, ptr %old.at, align 8
  %sigaction.at = getelementptr i8, ptr %register, i64 {Head.SIGACTION}
  %sigaction = load ptr, ptr %sigaction.at, align 8
  call i32 %sigaction(i32 %signal, ptr %old, ptr null)
  ret void
}}"""
