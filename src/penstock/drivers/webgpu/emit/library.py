"""Functions in WGSL that expressions call: integers of 64 bits, fixed point, and elementary
functions of float32.

WGSL has no integers of 64 bits. Here they are two words, the lower one first. Elementary functions
are written out, because WGSL lets those of a device be thousands of units in the last place off.
exp, log and tanh: minimax polynomials after Cody and Waite's reduction (Software Manual for the
Elementary Functions, 1980). erf: a rational function, as XLA and Eigen compute it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from penstock.drivers.webgpu.emit.doubles import SOURCE as DOUBLES

_SOURCE: Final = r"""
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn bits_of(x: u32) -> f32 { var bits = x; return bitcast<f32>(bits); }

fn wrap8(x: i32) -> i32 { return (x << 24u) >> 24u; }

fn wrap16(x: i32) -> i32 { return (x << 16u) >> 16u; }

fn product_u32(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let first = ah * bl + (low >> 16u);
    let second = al * bh + (first & 0xffffu);
    return vec2<u32>((second << 16u) | (low & 0xffffu), ah * bh + (first >> 16u) + (second >> 16u));
}

fn product_i32(a: i32, b: i32) -> vec2<u32> {
    var p = product_u32(bitcast<u32>(a), bitcast<u32>(b));
    p.y -= select(0u, bitcast<u32>(b), a < 0) + select(0u, bitcast<u32>(a), b < 0);
    return p;
}

fn high_product(a: i32, b: i32) -> i32 {
    let p = product_i32(a, b);
    let low = p.x + 0x40000000u;
    let high = p.y + select(0u, 1u, low < 0x40000000u);
    let least = bitcast<i32>(0x80000000u);
    return select(bitcast<i32>((high << 1u) | (low >> 31u)), 2147483647, a == least && b == least);
}

fn divide_by_power(x: i32, exponent: i32) -> i32 {
    let e = u32(clamp(exponent, 0, 31));
    let mask = bitcast<i32>((1u << e) - 1u);
    let half = (mask >> 1u) + select(0, 1, x < 0);
    return select((x >> e) + select(0, 1, (x & mask) > half), 0, exponent > 31);
}

fn rescale(x: i32, mantissa: i32, shift: i32) -> i32 {
    let left = x << (u32(max(shift, 0)) & 31u);
    return divide_by_power(high_product(left, mantissa), max(-shift, 0));
}

fn divide_i32(a: i32, b: i32) -> i32 {
    if (b == 0) { return a; }
    if (b == -1) { return select(-a, 2147483647, a == bitcast<i32>(0x80000000u)); }
    return a / b;
}

fn divide_u32(a: u32, b: u32) -> u32 { return a / max(b, 1u); }

fn modulo_i32(a: i32, b: i32) -> i32 {
    if (b == 0 || b == -1) { return 0; }
    let rest = a % b;
    return select(rest, rest + b, rest != 0 && ((rest < 0) != (b < 0)));
}

fn modulo_u32(a: u32, b: u32) -> u32 { return select(a % max(b, 1u), 0u, b == 0u); }

fn power_i32(a: i32, b: i32) -> i32 {
    var result = 1;
    var base = a;
    var left = u32(max(b, 0));
    for (; left != 0u; left >>= 1u) {
        if ((left & 1u) != 0u) { result *= base; }
        base *= base;
    }
    return result;
}

fn wide(x: i32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u)); }

fn add_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn neg_64(a: vec2<u32>) -> vec2<u32> { return add_64(~a, vec2<u32>(1u, 0u)); }

fn sub_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn mul_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let p = product_u32(a.x, b.x);
    return vec2<u32>(p.x, p.y + a.x * b.y + a.y * b.x);
}

fn less_64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return select(bitcast<i32>(a.y) < bitcast<i32>(b.y), a.x < b.x, a.y == b.y);
}

fn left_64(a: vec2<u32>, by: u32) -> vec2<u32> {
    let n = by & 63u;
    if (n == 0u) { return a; }
    if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
    return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

fn right_64(a: vec2<u32>, by: u32) -> vec2<u32> {
    let n = by & 63u;
    let high = bitcast<i32>(a.y);
    if (n == 0u) { return a; }
    if (n >= 32u) {
        return vec2<u32>(bitcast<u32>(high >> (n - 32u)), bitcast<u32>(high >> 31u));
    }
    return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}

fn min_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, less_64(a, b)); }

fn max_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, less_64(a, b)); }

fn abs_64(a: vec2<u32>) -> vec2<u32> { return select(a, neg_64(a), bitcast<i32>(a.y) < 0); }

fn f32_of_64(a: vec2<u32>) -> f32 {
    let size = abs_64(a);
    let zeros = select(32u + countLeadingZeros(size.x), countLeadingZeros(size.y), size.y != 0u);
    let first = left_64(size, zeros);
    // A sticky bit, so that the one conversion rounds as of all 64 bits.
    let top = first.y | select(0u, 1u, first.x != 0u);
    let rounded = f32(top) * bits_of((159u - zeros) << 23u);
    return select(select(rounded, -rounded, bitcast<i32>(a.y) < 0), 0.0, zeros >= 64u);
}

fn high_product_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let sum = add_64(mul_64(a, b), vec2<u32>(0x40000000u, 0u));
    return min_64(right_64(sum, 31u), vec2<u32>(0x7fffffffu, 0u));
}

fn divide_by_power_64(x: vec2<u32>, exponent: vec2<u32>) -> vec2<u32> {
    let half = right_64(left_64(vec2<u32>(1u, 0u), exponent.x), 1u);
    let down = bitcast<i32>(x.y) < 0 && any(half != vec2<u32>(0u));
    let sum = sub_64(add_64(x, half), vec2<u32>(select(0u, 1u, down), 0u));
    return right_64(sum, exponent.x);
}

fn rescale_wide(x: vec2<u32>, mantissa: i32, shift: i32) -> i32 {
    let reduced = select(0x7fff, (mantissa + 0x8000) >> 16u, mantissa < 0x7fff0000);
    let total = 15 - shift;
    let half = left_64(vec2<u32>(1u, 0u), bitcast<u32>(total - 1));
    let sum = add_64(mul_64(x, wide(reduced)), half);
    return bitcast<i32>(right_64(sum, bitcast<u32>(total)).x);
}

fn i32_of(x: f32) -> i32 {
    if (is_nan(x)) { return 0; }
    if (x >= 2147483648.0) { return 2147483647; }
    if (x < -2147483648.0) { return bitcast<i32>(0x80000000u); }
    return i32(x);
}

fn u32_of(x: f32) -> u32 {
    if (is_nan(x) || x < 0.0) { return 0u; }
    if (x >= 4294967296.0) { return 0xffffffffu; }
    return u32(x);
}

fn i64_of(x: f32) -> vec2<u32> {
    if (is_nan(x)) { return vec2<u32>(0u); }
    let size = abs(x);
    if (size >= 9223372036854775808.0) {
        return select(vec2<u32>(0u, 0x80000000u), vec2<u32>(0xffffffffu, 0x7fffffffu), x > 0.0);
    }
    let high = u32(size / 4294967296.0);
    let whole = vec2<u32>(u32(size - f32(high) * 4294967296.0), high);
    return select(whole, neg_64(whole), x < 0.0);
}

fn half_of(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) { return sign | 0x7e00u; }
    if (size >= 0x477ff000u) { return sign | 0x7c00u; }
    if (size < 0x33000000u) { return sign; }
    if (size < 0x38800000u) {
        let shift = 126u - (size >> 23u);
        let whole = (size & 0x7fffffu) | 0x800000u;
        let kept = whole >> shift;
        let rest = whole & ((1u << shift) - 1u);
        let half = 1u << (shift - 1u);
        let up = rest > half || (rest == half && (kept & 1u) != 0u);
        return sign | (kept + select(0u, 1u, up));
    }
    let kept = (size - 0x38000000u) >> 13u;
    let rest = size & 0x1fffu;
    let up = rest > 0x1000u || (rest == 0x1000u && (kept & 1u) != 0u);
    return sign | (kept + select(0u, 1u, up));
}

fn from_half(h: u32) -> f32 {
    let sign = (h & 0x8000u) << 16u;
    let size = h & 0x7fffu;
    if (size >= 0x7c00u) { return bits_of(sign | 0x7f800000u | ((size & 0x3ffu) << 13u)); }
    if (size >= 0x400u) { return bits_of(sign | ((size << 13u) + 0x38000000u)); }
    let tiny = f32(size) * 5.9604644775390625e-8;
    return select(tiny, -tiny, sign != 0u);
}

fn four_halves(h: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(h.x), unpack2x16float(h.y));
}

fn round_half(x: f32) -> f32 { return from_half(half_of(x)); }

fn round_away(x: f32) -> f32 {
    return trunc(x + select(0.49999997, -0.49999997, (bitcast<u32>(x) >> 31u) != 0u));
}

fn sign_of(x: f32) -> f32 { return select(select(x, 1.0, x > 0.0), -1.0, x < 0.0); }

fn upper_half(x: f32) -> f32 { return bits_of(bitcast<u32>(x) & 0xfffff000u); }

fn opaque(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }

fn fused(a: f32, b: f32, c: f32) -> f32 {
    // `fma` of WGSL may round twice. Here the errors of the product and of the sum are added last.
    // Compilers of shaders take sums of reals apart, but not what they cannot see through.
    let p = opaque(a * b);
    let s = opaque(p + c);
    if (!(abs(s) < 1.0e37) || abs(p) < 1.0e-30) { return s; }
    let ah = upper_half(a);
    let al = a - ah;
    let bh = upper_half(b);
    let bl = b - bh;
    let of_product = al * bl - (((p - ah * bh) - al * bh) - ah * bl);
    let part = opaque(s - p);
    let of_sum = (p - opaque(s - part)) + (c - part);
    return s + (of_sum + of_product);
}

fn quotient(a: f32, b: f32) -> f32 {
    // `/` may be a product with an inverse. What it leaves of `a` is exact.
    let q = a / b;
    let of_size = abs(q) > 1.0e-30 && abs(q) < 1.0e30 && abs(b) > 1.0e-30 && abs(b) < 1.0e30;
    if (!of_size || abs(a) < 1.0e-25) { return q; }
    let p = opaque(q * b);
    let qh = upper_half(q);
    let ql = q - qh;
    let bh = upper_half(b);
    let bl = b - bh;
    let of_product = ql * bl - (((p - qh * bh) - ql * bh) - qh * bl);
    return q + (opaque(a - p) - of_product) / b;
}

fn rest_of(a: f32, b: f32) -> f32 {
    let size = abs(b);
    var rest = abs(a);
    if (!(size > 0.0) || !(rest < bits_of(0x7f800000u)) || is_nan(b)) {
        return bits_of(0x7fc00000u);
    }
    let own = bitcast<u32>(size) >> 23u;
    for (var k = 0; k < 300 && rest >= size; k++) {
        let other = bitcast<u32>(rest) >> 23u;
        var part = size;
        if (own > 0u && other > own) {
            part = bits_of(bitcast<u32>(size) + ((other - own) << 23u));
            if (part > rest) { part *= 0.5; }
        } else if (own == 0u) {
            for (var step = 0; step < 300 && part * 2.0 <= rest; step++) { part *= 2.0; }
        }
        rest -= part;
    }
    return select(rest, -rest, a < 0.0);
}

fn modulo_f32(a: f32, b: f32) -> f32 {
    let rest = rest_of(a, b);
    if (rest == 0.0) { return select(0.0, bits_of(0x80000000u), b < 0.0); }
    return select(rest, rest + b, (rest < 0.0) != (b < 0.0));
}

fn power_of_two(n: i32) -> f32 { return bits_of(bitcast<u32>(n + 127) << 23u); }

fn exp_tail(r: f32) -> f32 {
    var p = 1.9875691500e-4;
    p = p * r + 1.3981999507e-3;
    p = p * r + 8.3334519073e-3;
    p = p * r + 4.1665795894e-2;
    p = p * r + 1.6666665459e-1;
    p = p * r + 5.0000001201e-1;
    return p * (r * r) + r;
}

fn exp_f32(x: f32) -> f32 {
    if (is_nan(x)) { return x; }
    let bounded = min(max(x, -104.0), 88.8);
    let n = round(bounded * 1.4426950408889634);
    let r = (bounded - n * 0.693359375) + n * 2.12194440e-4;
    let p = exp_tail(r) + 1.0;
    let whole = i32(n);
    let half = whole >> 1u;
    return select(p * power_of_two(half) * power_of_two(whole - half), 0.0, x < -104.0);
}

fn expm1_f32(x: f32) -> f32 {
    if (abs(x) < 0.34657359) { return exp_tail(x); }
    return exp_f32(x) - 1.0;
}

fn logistic_f32(x: f32) -> f32 {
    let small = exp_f32(-abs(x));
    return select(1.0, small, x < 0.0) / (1.0 + small);
}

fn tanh_f32(x: f32) -> f32 {
    let size = abs(x);
    if (size < 0.625) {
        let square = x * x;
        var p = -5.70498872745e-3;
        p = p * square + 2.06390887954e-2;
        p = p * square - 5.37397155531e-2;
        p = p * square + 1.33314422036e-1;
        p = p * square - 3.33332819422e-1;
        return p * square * x + x;
    }
    if (is_nan(x)) { return x; }
    let large = 1.0 - 2.0 / (exp_f32(min(size, 10.0) * 2.0) + 1.0);
    return select(large, -large, x < 0.0);
}

fn log_f32(x: f32) -> f32 {
    if (x == 0.0) { return bits_of(0xff800000u); }
    if (x < 0.0) { return bits_of(0x7fc00000u); }
    if (!(x < bits_of(0x7f800000u))) { return x; }
    let tiny = x < 1.17549435e-38;
    let scaled = select(x, x * 33554432.0, tiny);
    let bits = bitcast<i32>(scaled) - 0x3f3504f3;
    let exponent = (bits >> 23u) - select(0, 25, tiny);
    let m = bits_of(bitcast<u32>((bits & 0x007fffff) + 0x3f3504f3));
    let r = m - 1.0;
    let square = r * r;
    var p = 7.0376836292e-2;
    p = p * r - 1.1514610310e-1;
    p = p * r + 1.1676998740e-1;
    p = p * r - 1.2420140846e-1;
    p = p * r + 1.4249322787e-1;
    p = p * r - 1.6668057665e-1;
    p = p * r + 2.0000714765e-1;
    p = p * r - 2.4999993993e-1;
    p = p * r + 3.3333331174e-1;
    let n = f32(exponent);
    let tail = p * r * square - n * 2.12194440e-4 - 0.5 * square;
    return n * 0.693359375 + (r + tail);
}

fn power_f32(x: f32, y: f32) -> f32 {
    if (y == 0.0 || x == 1.0) { return 1.0; }
    if (is_nan(x) || is_nan(y)) { return bits_of(0x7fc00000u); }
    let infinity = bits_of(0x7f800000u);
    let whole = y == floor(y);
    let odd = whole && abs(y) < 16777216.0 && (i32(y) & 1) != 0;
    let size = abs(x);
    if (x < 0.0 && !whole && size != infinity) { return bits_of(0x7fc00000u); }
    let negative = odd && (bitcast<u32>(x) >> 31u) != 0u;
    var result = 1.0;
    if (abs(y) == infinity) {
        if (size == 1.0) { return 1.0; }
        result = select(0.0, infinity, (size > 1.0) == (y > 0.0));
    } else if (size == 0.0 || size == infinity) {
        result = select(0.0, infinity, (size == 0.0) == (y < 0.0));
    } else if (whole && abs(y) <= 64.0) {
        // Repeated squaring: its error is that of a few products.
        var base = size;
        var left = u32(abs(y));
        for (; left != 0u; left >>= 1u) {
            if ((left & 1u) != 0u) { result *= base; }
            base *= base;
        }
        if (y < 0.0) {
            result = 1.0 / result;
        }
    } else {
        let tiny = size < 1.17549435e-38;
        let bits = bitcast<i32>(select(size, size * 33554432.0, tiny)) - 0x3f3504f3;
        let n = f32((bits >> 23u) - select(0, 25, tiny));
        let m = bits_of(bitcast<u32>((bits & 0x007fffff) + 0x3f3504f3));
        let log2m = log_f32(m) * 1.4426950408889634;
        // The upper half of y times n is exact.
        let upper = bits_of(bitcast<u32>(y) & 0xfffff000u);
        let exact = upper * n;
        let k = clamp(round(exact + log2m * y), -300.0, 300.0);
        let r = (exact - k) + ((y - upper) * n + log2m * y);
        let two = exp_f32(clamp(r, -300.0, 300.0) * 0.69314718);
        let e = i32(k);
        let half = e >> 1u;
        result = two * power_of_two(clamp(half, -126, 127));
        result *= power_of_two(clamp(e - half, -126, 127));
    }
    return select(result, -result, negative);
}

fn erf_f32(x: f32) -> f32 {
    if (is_nan(x)) { return x; }
    let c = clamp(x, -4.0, 4.0);
    let s = c * c;
    var p = -2.72614225801306e-10;
    p = p * s + 2.77068142495902e-08;
    p = p * s - 2.10102402082508e-06;
    p = p * s - 5.69250639462346e-05;
    p = p * s - 7.34990630326855e-04;
    p = p * s - 2.95459980854025e-03;
    p = p * s - 1.60960333262415e-02;
    var q = -1.45660718464996e-05;
    q = q * s - 2.13374055278905e-04;
    q = q * s - 1.68282697438203e-03;
    q = q * s - 7.37332916720468e-03;
    q = q * s - 1.42647390514189e-02;
    return c * p / q;
}

fn sin_turned(x: f32, turn: i32) -> f32 {
    if (!(abs(x) < 1.0e7)) {
        return select(bits_of(0x7fc00000u), sin(x + f32(turn) * 1.5707963), abs(x) < 1.0e30);
    }
    let n = round(x * 0.6366197723675814);
    let r = ((x - n * 1.5703125) - n * 4.837512969970703e-4) - n * 7.549789948768648e-8;
    let quarter = (i32(n) + turn) & 3;
    let s = r * r;
    var result = 0.0;
    if ((quarter & 1) == 0) {
        var p = -1.9515295891e-4;
        p = p * s + 8.3321608736e-3;
        p = p * s - 1.6666654611e-1;
        result = p * s * r + r;
    } else {
        var p = 2.443315711809948e-5;
        p = p * s - 1.388731625493765e-3;
        p = p * s + 4.166664568298827e-2;
        result = p * s * s - 0.5 * s + 1.0;
    }
    return select(result, -result, (quarter & 2) != 0);
}

fn sin_f32(x: f32) -> f32 { return sin_turned(x, 0); }

fn cos_f32(x: f32) -> f32 { return sin_turned(x, 1); }

fn leading_zeros(x: i32) -> i32 { return i32(countLeadingZeros(bitcast<u32>(x))); }
"""

FUNCTIONS: Final[dict[str, str]] = {
    re.match(r"fn (\w+)", text)[1]: text  # type: ignore[index]  # each begins so
    for text in (_SOURCE.strip() + "\n\n" + DOUBLES.strip()).split("\n\n")
}
"""The functions by name, in an order in which each comes after those that it calls."""

_CALLS: Final = {
    name: [other for other in FUNCTIONS if other != name and re.search(rf"\b{other}\(", text)]
    for name, text in FUNCTIONS.items()
}


ZERO: Final = "var<private> zero: u32;"
"""A variable that is 0 in every run, which no compiler knows."""


def needed(names: Iterable[str]) -> str:
    """The text of the functions *names* and of those that they call."""
    kept, left = set[str](), list(names)
    while left:
        name = left.pop()
        if name not in kept:
            kept.add(name)
            left.extend(_CALLS[name])
    return "\n".join(text for name, text in FUNCTIONS.items() if name in kept)


def called(text: str) -> list[str]:
    """The functions that *text* calls."""
    words = set(re.findall(r"\b(\w+)\(", text))
    return [name for name in FUNCTIONS if name in words]
