// Rotary position embedding of four elements of a head: rope_low(j), +1, rope_high(j), +1.
// Interleaved models rotate (0,1) and (2,3) of them, half-split models (0,2) and (1,3).
override HALVES: bool;

fn rope_low(j: u32) -> u32 { return select(4u * j, 2u * j, HALVES); }
fn rope_high(j: u32) -> u32 { return select(4u * j + 2u, 2u * j + HEAD_DIM / 2u, HALVES); }

fn rotate4(v: vec4<f32>, position: u32, j: u32) -> vec4<f32> {
  let t = rope[position * (HEAD_DIM / 4u) + j];  // cos, sin of two neighbouring frequencies
  if (HALVES) {
    return vec4<f32>(v.x * t.x - v.z * t.y, v.y * t.z - v.w * t.w,
                     v.x * t.y + v.z * t.x, v.y * t.w + v.w * t.z);
  }
  return vec4<f32>(v.x * t.x - v.y * t.y, v.x * t.y + v.y * t.x,
                   v.z * t.z - v.w * t.w, v.z * t.w + v.w * t.z);
}

// The inverse: in every pair the two change their parts.
fn rotate4_back(v: vec4<f32>, position: u32, j: u32) -> vec4<f32> {
  if (HALVES) { return rotate4(v.zwxy, position, j).zwxy; }
  return rotate4(v.yxwz, position, j).yxwz;
}
