// The input of a linear layer is an attention of one token in spans, which each workgroup joins.
const NORM = false;
var<workgroup> attended: array<vec4<f32>, K / 4u + K / 32u>;

// Lanes read blocks of eight quads: one between them, and they find them in different banks.
fn place(i: u32) -> u32 { return i + i / 8u; }

fn prepare_input(lane: u32) {
  for (var i = lane; i < K / 4u; i += WORKGROUP) {
    attended[place(i)] = joined(i / (HEAD_DIM / 4u), step.position + 1u, i % (HEAD_DIM / 4u));
  }
  workgroupBarrier();
}

fn input(i: u32) -> vec4<f32> { return attended[place(i)]; }
fn gain(i: u32) -> vec4<f32> { return vec4<f32>(1.0); }
