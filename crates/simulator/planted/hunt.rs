//! Runs the simulator until the oracle reports a violation. Only the patched copy of the sources has this program; see
//! `planted/README.md` of the simulator.

fn main() {
    posthaste_simulator::planted::hunt();
}
