"""Approvals: a person looks before something happens (approvals.md).

Where what lives:

- `values`, `digests`, `records`, `errors`: what a value may be (§2), what is hashed (§9), rows as checked values
- `registry`: the one list of action types; `actions/` one module for each (inspect, execute, observe)
- `gate`: the policy gate and the fence (§4.1, §4.2); `transactions`: tries (§4.3)
- `plans`, `standing`: plan and preview of a request; whether what was asked for is still what would happen
- `services/`: `filing`, `creating`, `deciding`, `consuming`, `withdrawing`, `lapsing`, `sweeping` (§4), `asking` (what
  triggers ask for);
  `fencing`: the conditional write; `execution` (§5), `run_creation` (§6.3), `recovery` (§7), `manual` (§7.5)
- `voting`: who said what and whether it is enough; `admitting`: what the door of runs asks (`runs.services.door`)
- `contract`: what an action type brings; `action_records`, `snapshots`: rows of execution and recovery, checked
- `due`, `dispatching` with `heartbeat`, `recovery`: dispatcher and reconciler (§5.1, §7.3); `cycle`: both in turn (§8)
- `receipts`: the evidence of `run.create`
- `queries`: pages and look-ups (§4.7, §11); `jobs`, `health`: what the control cluster calls, what is measured
"""
