// A team of one lane: nothing to fold, and no barrier.
fn team_fold(value: f32, lane: u32, how: u32) -> f32 { return value; }
