// The error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
fn erf(x: f32) -> f32 {
  let t = 1.0 / (1.0 + 0.3275911 * abs(x));
  let series =
    ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return sign(x) * (1.0 - series * exp(-min(x * x, 80.0)));
}

// The sine of x plus `turns` quarters of a circle, to 1e-6 up to a few thousand: WGSL's own may be
// off by 5e-4. The remainder of a quarter by parts of pi / 2 (Cody and Waite, 1980), then the
// polynomials of Cephes (Moshier, 1989).
fn sine(x: f32, turns: i32) -> f32 {
  let quarters = round(x * 0.63661977);
  let r = ((x - quarters * 1.5703125) - quarters * 4.8375129699707e-4) - quarters * 7.5497899549e-8;
  let z = r * r;
  let s = r + r * z * ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1);
  let c = 1.0 - 0.5 * z +
    z * z * ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2);
  let quadrant = u32(i32(quarters) + turns) & 3u;
  let size = select(s, c, (quadrant & 1u) == 1u);
  return select(size, -size, quadrant >= 2u);
}
