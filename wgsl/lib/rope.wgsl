// Rotary position embedding of four elements of a head: rope_low(j), +1, rope_high(j), +1.
// Interleaved models rotate (0,1) and (2,3) of them, half-split models (0,2) and (1,3). Only the
// first ROTARY elements are rotated; the table has a cosine of 1 and a sine of 0 for the rest.
override HALVES: bool;
override ROTARY: u32;

fn rope_halves(j: u32) -> bool { return HALVES && 4u * j < ROTARY; }
fn rope_low(j: u32) -> u32 { return select(4u * j, 2u * j, rope_halves(j)); }
fn rope_high(j: u32) -> u32 { return select(4u * j + 2u, 2u * j + ROTARY / 2u, rope_halves(j)); }

// Elements 2i and 2i + 1 of a head are half of four: of which, and whether the second half.
fn rope_quad(i: u32) -> u32 { return select(i / 2u, i % (ROTARY / 4u), HALVES && 2u * i < ROTARY); }
fn rope_second(i: u32) -> bool {
  return select(i % 2u == 1u, i >= ROTARY / 4u, HALVES && 2u * i < ROTARY);
}

fn rotated(v: vec4<f32>, t: vec4<f32>) -> vec4<f32> {
  if (HALVES) {
    return vec4<f32>(v.x * t.x - v.z * t.y, v.y * t.z - v.w * t.w,
                     v.x * t.y + v.z * t.x, v.y * t.w + v.w * t.z);
  }
  return vec4<f32>(v.x * t.x - v.y * t.y, v.x * t.y + v.y * t.x,
                   v.z * t.z - v.w * t.w, v.z * t.w + v.w * t.z);
}

fn rotate4(v: vec4<f32>, position: u32, j: u32) -> vec4<f32> {
  return rotated(v, rope[position * (HEAD_DIM / 4u) + j]);  // of two neighbouring frequencies
}

// The inverse, but for the length: a table may make rotated vectors longer.
fn rotate4_back(v: vec4<f32>, position: u32, j: u32) -> vec4<f32> {
  let t = rope[position * (HEAD_DIM / 4u) + j];
  let one = normalize(t.xy);
  let other = normalize(t.zw);
  return rotated(v, vec4<f32>(one.x, -one.y, other.x, -other.y));
}
