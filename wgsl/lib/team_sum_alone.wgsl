// A team of one lane: nothing to add, and no barrier.
fn team_sum(value: f32, lane: u32) -> f32 { return value; }
