"""Arithmetic of float64, a type that WGSL does not have: IEEE 754 on two words, the lower first.

Each result is rounded once, to the nearest, ties to even. One operation takes tens of instructions,
a quotient or a root hundreds.
"""

from __future__ import annotations

from typing import Final

SOURCE: Final = r"""
fn zeros_64(a: vec2<u32>) -> u32 {
    return select(32u + countLeadingZeros(a.x), countLeadingZeros(a.y), a.y != 0u);
}

fn below_64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return select(a.y < b.y, a.x < b.x, a.y == b.y);
}

fn down_64(a: vec2<u32>, by: u32) -> vec2<u32> {
    if (by == 0u) { return a; }
    if (by >= 64u) { return vec2<u32>(0u); }
    if (by >= 32u) { return vec2<u32>(a.y >> (by - 32u), 0u); }
    return vec2<u32>((a.x >> by) | (a.y << (32u - by)), a.y >> by);
}

fn sticky_64(a: vec2<u32>, by: u32) -> vec2<u32> {
    // The last bit says whether any bit was lost.
    let kept = down_64(a, by);
    let lost = by != 0u && any(select(left_64(a, 64u - by), a, by >= 64u) != vec2<u32>(0u));
    return vec2<u32>(kept.x | select(0u, 1u, lost), kept.y);
}

fn neg_f64(a: vec2<u32>) -> vec2<u32> { return vec2<u32>(a.x, a.y ^ 0x80000000u); }

fn abs_f64(a: vec2<u32>) -> vec2<u32> { return vec2<u32>(a.x, a.y & 0x7fffffffu); }

fn is_nan_f64(a: vec2<u32>) -> bool { return below_64(vec2<u32>(0u, 0x7ff00000u), abs_f64(a)); }

fn is_infinite_f64(a: vec2<u32>) -> bool { return a.x == 0u && (a.y << 1u) == 0xffe00000u; }

fn is_zero_f64(a: vec2<u32>) -> bool { return (a.x | (a.y << 1u)) == 0u; }

fn significand_f64(a: vec2<u32>) -> vec2<u32> {
    // The highest bit is set, also that of a number too small to be normal.
    let hidden = select(0u, 0x100000u, (a.y & 0x7ff00000u) != 0u);
    let whole = left_64(vec2<u32>(a.x, (a.y & 0xfffffu) | hidden), 11u);
    return left_64(whole, zeros_64(whole) & 63u);
}

fn exponent_f64(a: vec2<u32>) -> i32 {
    let field = i32((a.y >> 20u) & 0x7ffu);
    return select(field, 12 - i32(zeros_64(vec2<u32>(a.x, a.y & 0xfffffu))), field == 0);
}

fn packed_f64(sign: u32, exponent: i32, significand: vec2<u32>) -> vec2<u32> {
    let small = exponent <= 0;
    let m = sticky_64(significand, select(0u, u32(min(1 - exponent, 64)), small));
    let rest = m.x & 0x7ffu;
    let up = rest > 0x400u || (rest == 0x400u && (m.x & 0x800u) != 0u);
    let kept = add_64(down_64(m, 11u), vec2<u32>(select(0u, 1u, up), 0u));
    // The highest bit of the significand adds one to the exponent.
    let high = kept.y + (u32(clamp(exponent - 1, 0, 2046)) << 20u);
    if (exponent >= 2047 || high >= 0x7ff00000u) { return vec2<u32>(0u, sign | 0x7ff00000u); }
    return vec2<u32>(kept.x, sign | high);
}

fn add_f64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if (is_nan_f64(a) || is_nan_f64(b)) { return vec2<u32>(0u, 0x7ff80000u); }
    if (is_infinite_f64(a)) {
        return select(a, vec2<u32>(0u, 0x7ff80000u), is_infinite_f64(b) && a.y != b.y);
    }
    let swap = below_64(abs_f64(a), abs_f64(b));
    let p = select(a, b, swap);
    let q = select(b, a, swap);
    if (is_infinite_f64(p)) { return p; }
    if (is_zero_f64(q)) { return select(p, vec2<u32>(0u, p.y & q.y), is_zero_f64(p)); }
    let large = down_64(significand_f64(p), 1u);
    let apart = u32(min(exponent_f64(p) - exponent_f64(q), 64));
    let small = sticky_64(down_64(significand_f64(q), 1u), apart);
    let sum = select(sub_64(large, small), add_64(large, small), ((p.y ^ q.y) >> 31u) == 0u);
    if (all(sum == vec2<u32>(0u))) { return sum; }
    let zeros = zeros_64(sum);
    let e = exponent_f64(p) + 1 - i32(zeros);
    return packed_f64(p.y & 0x80000000u, e, left_64(sum, zeros));
}

fn sub_f64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return add_f64(a, neg_f64(b)); }

fn mul_f64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let sign = (a.y ^ b.y) & 0x80000000u;
    let none = is_zero_f64(a) || is_zero_f64(b);
    let infinite = is_infinite_f64(a) || is_infinite_f64(b);
    if (is_nan_f64(a) || is_nan_f64(b) || (none && infinite)) {
        return vec2<u32>(0u, 0x7ff80000u);
    }
    if (infinite) { return vec2<u32>(0u, sign | 0x7ff00000u); }
    if (none) { return vec2<u32>(0u, sign); }
    let x = significand_f64(a);
    let y = significand_f64(b);
    let ll = product_u32(x.x, y.x);
    let lh = product_u32(x.x, y.y);
    let hl = product_u32(x.y, y.x);
    let middle = add_64(add_64(vec2<u32>(ll.y, 0u), vec2<u32>(lh.x, 0u)), vec2<u32>(hl.x, 0u));
    let above = add_64(add_64(vec2<u32>(lh.y, 0u), vec2<u32>(hl.y, 0u)), vec2<u32>(middle.y, 0u));
    var high = add_64(product_u32(x.y, y.y), above);
    high.x |= select(0u, 1u, (ll.x | middle.x) != 0u);
    let short = high.y >> 31u == 0u;
    let e = exponent_f64(a) + exponent_f64(b) - select(1022, 1023, short);
    return packed_f64(sign, e, left_64(high, select(0u, 1u, short)));
}

fn div_f64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let sign = (a.y ^ b.y) & 0x80000000u;
    let zeros = is_zero_f64(a) && is_zero_f64(b);
    let infinities = is_infinite_f64(a) && is_infinite_f64(b);
    if (is_nan_f64(a) || is_nan_f64(b) || zeros || infinities) {
        return vec2<u32>(0u, 0x7ff80000u);
    }
    if (is_infinite_f64(a) || is_zero_f64(b)) { return vec2<u32>(0u, sign | 0x7ff00000u); }
    if (is_infinite_f64(b) || is_zero_f64(a)) { return vec2<u32>(0u, sign); }
    var rest = down_64(significand_f64(a), 1u);
    let d = down_64(significand_f64(b), 1u);
    var q = vec2<u32>(0u);
    for (var k = 0; k < 64; k++) {
        let more = !below_64(rest, d);
        rest = left_64(select(rest, sub_64(rest, d), more), 1u);
        q = left_64(q, 1u);
        q.x |= select(0u, 1u, more);
    }
    q.x |= select(0u, 1u, any(rest != vec2<u32>(0u)));
    let short = q.y >> 31u == 0u;
    let e = exponent_f64(a) - exponent_f64(b) + select(1023, 1022, short);
    return packed_f64(sign, e, left_64(q, select(0u, 1u, short)));
}

fn sqrt_f64(a: vec2<u32>) -> vec2<u32> {
    if (is_zero_f64(a)) { return a; }
    if (is_nan_f64(a) || a.y >> 31u != 0u) { return vec2<u32>(0u, 0x7ff80000u); }
    if (is_infinite_f64(a)) { return a; }
    let e = exponent_f64(a) - 1023;
    let odd = e & 1;
    let s = left_64(down_64(significand_f64(a), 11u), u32(odd));
    var rest = vec2<u32>(0u);
    var root = vec2<u32>(0u);
    for (var k = 0u; k < 56u; k++) {
        let pair = select(0u, down_64(s, 52u - 2u * min(k, 26u)).x & 3u, k < 27u);
        rest = left_64(rest, 2u);
        rest.x |= pair;
        var trial = left_64(root, 2u);
        trial.x |= 1u;
        let more = !below_64(rest, trial);
        rest = select(rest, sub_64(rest, trial), more);
        root = left_64(root, 1u);
        root.x |= select(0u, 1u, more);
    }
    var m = left_64(root, 8u);
    m.x |= select(0u, 1u, any(rest != vec2<u32>(0u)));
    return packed_f64(0u, ((e - odd) >> 1u) + 1023, m);
}

fn less_f64(a: vec2<u32>, b: vec2<u32>) -> bool {
    if (is_nan_f64(a) || is_nan_f64(b) || (is_zero_f64(a) && is_zero_f64(b))) { return false; }
    let negative = a.y >> 31u != 0u;
    if (negative != (b.y >> 31u != 0u)) { return negative; }
    return select(below_64(a, b), below_64(b, a), negative);
}

fn equal_f64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return !is_nan_f64(a) && (all(a == b) || (is_zero_f64(a) && is_zero_f64(b)));
}

fn less_equal_f64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return less_f64(a, b) || equal_f64(a, b);
}

fn min_f64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, less_f64(a, b)); }

fn max_f64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, less_f64(b, a)); }

fn trunc_f64(a: vec2<u32>) -> vec2<u32> {
    let e = i32((a.y >> 20u) & 0x7ffu) - 1023;
    if (e < 0) { return vec2<u32>(0u, a.y & 0x80000000u); }
    if (e >= 52) { return a; }
    let lost = u32(52 - e);
    if (lost >= 32u) { return vec2<u32>(0u, a.y & ~((1u << (lost - 32u)) - 1u)); }
    return vec2<u32>(a.x & ~((1u << lost) - 1u), a.y);
}

fn floor_f64(a: vec2<u32>) -> vec2<u32> {
    let whole = trunc_f64(a);
    let lower = a.y >> 31u != 0u && any(whole != a) && !is_nan_f64(a);
    return select(whole, add_f64(whole, vec2<u32>(0u, 0xbff00000u)), lower);
}

fn ceil_f64(a: vec2<u32>) -> vec2<u32> { return neg_f64(floor_f64(neg_f64(a))); }

fn round_away_f64(a: vec2<u32>) -> vec2<u32> {
    // The greatest number below one half: one half would round 0.49999999999999994 to 1.
    let half = vec2<u32>(0xffffffffu, 0x3fdfffffu | (a.y & 0x80000000u));
    return trunc_f64(add_f64(a, half));
}

fn round_even_f64(a: vec2<u32>) -> vec2<u32> {
    if ((a.y & 0x7fffffffu) >= 0x43300000u) { return a; }
    let large = vec2<u32>(0u, 0x43300000u);
    return vec2<u32>(0u, a.y & 0x80000000u) | sub_f64(add_f64(abs_f64(a), large), large);
}

fn sign_of_f64(a: vec2<u32>) -> vec2<u32> {
    let one = vec2<u32>(0u, (a.y & 0x80000000u) | 0x3ff00000u);
    return select(select(one, vec2<u32>(0u), is_zero_f64(a)), a, is_nan_f64(a));
}

fn f64_of_i64(a: vec2<u32>) -> vec2<u32> {
    let size = abs_64(a);
    let zeros = zeros_64(size);
    if (zeros == 64u) { return size; }
    return packed_f64(a.y & 0x80000000u, 1086 - i32(zeros), left_64(size, zeros));
}

fn f64_of_f32(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x);
    let sign = bits & 0x80000000u;
    let field = (bits >> 23u) & 0xffu;
    let rest = bits & 0x7fffffu;
    if (field == 255u) {
        return vec2<u32>(0u, sign | 0x7ff00000u | select(0u, 0x80000u, rest != 0u));
    }
    let whole = (rest | select(0u, 0x800000u, field != 0u)) << 8u;
    if (whole == 0u) { return vec2<u32>(0u, sign); }
    let zeros = countLeadingZeros(whole);
    let e = i32(max(field, 1u)) + 896 - i32(zeros);
    return packed_f64(sign, e, vec2<u32>(0u, whole << zeros));
}

fn f32_of_f64(a: vec2<u32>) -> f32 {
    let sign = a.y & 0x80000000u;
    if (is_nan_f64(a)) { return bits_of(0x7fc00000u); }
    if (is_zero_f64(a)) { return bits_of(sign); }
    let e = exponent_f64(a) - 896;
    if (e >= 255) { return bits_of(sign | 0x7f800000u); }
    let m = sticky_64(significand_f64(a), select(0u, u32(min(1 - e, 64)), e <= 0));
    let kept = m.y >> 8u;
    let rest = m.y & 0xffu;
    let up = rest > 0x80u || (rest == 0x80u && (m.x != 0u || (kept & 1u) != 0u));
    // A carry out of the significand adds one to the exponent, up to infinity.
    return bits_of(sign | (kept + select(0u, 1u, up) + (u32(max(e - 1, 0)) << 23u)));
}

fn i64_of_f64(a: vec2<u32>) -> vec2<u32> {
    if (is_nan_f64(a)) { return vec2<u32>(0u); }
    let e = exponent_f64(a) - 1023;
    let negative = a.y >> 31u != 0u;
    if (e < 0) { return vec2<u32>(0u); }
    if (e >= 63) {
        return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), negative);
    }
    let size = down_64(significand_f64(a), u32(63 - e));
    return select(size, neg_64(size), negative);
}

fn i32_of_f64(a: vec2<u32>) -> i32 {
    let whole = i64_of_f64(a);
    let most = vec2<u32>(0x7fffffffu, 0u);
    let least = vec2<u32>(0x80000000u, 0xffffffffu);
    return bitcast<i32>(max_64(min_64(whole, most), least).x);
}

fn u32_of_f64(a: vec2<u32>) -> u32 {
    let whole = i64_of_f64(a);
    return max_64(min_64(whole, vec2<u32>(0xffffffffu, 0u)), vec2<u32>(0u)).x;
}
"""
