//! The declarations of `ffi` against the installed `infiniband/verbs.h`.

use std::fmt::Write;
use std::process::Command;

use crate::ffi::*;

/// Name, size and the fields' offsets of a structure.
type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

/// Every structure; `true` where ours is only the beginning of it.
fn layouts() -> Vec<(bool, Layout)> {
    vec![
        (false, ibv_context_ops::layout()),
        (true, ibv_context::layout()),
        (false, ibv_pd::layout()),
        (false, ibv_mr::layout()),
        (true, ibv_cq::layout()),
        (true, ibv_qp::layout()),
        (true, ibv_srq::layout()),
        (false, ibv_comp_channel::layout()),
        (false, ibv_sge::layout()),
        (false, ibv_send_wr::layout()),
        (false, ibv_recv_wr::layout()),
        (false, ibv_wc::layout()),
        (false, ibv_global_route::layout()),
        (false, ibv_ah_attr::layout()),
        (false, ibv_qp_cap::layout()),
        (false, ibv_qp_attr::layout()),
        (false, ibv_qp_init_attr::layout()),
        (false, ibv_srq_attr::layout()),
        (false, ibv_srq_init_attr::layout()),
        (false, ibv_device_attr::layout()),
        (false, ibv_port_attr::layout()),
        (false, ibv_async_event::layout()),
    ]
}

/// A program of assertions: what does not hold does not compile.
fn program() -> String {
    let mut c = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n");
    for (prefix, (name, size, fields)) in layouts() {
        if !prefix {
            let _ = writeln!(c, "_Static_assert(sizeof(struct {name}) == {size}, \"size of {name}\");");
        }
        for (field, at) in fields {
            let _ = writeln!(c, "_Static_assert(offsetof(struct {name}, {field}) == {at}, \"{name}.{field}\");");
        }
    }
    let (_, _, remote) = ibv_wr_remote::layout();
    for (field, at) in remote {
        let _ = writeln!(
            c,
            "_Static_assert(offsetof(struct ibv_send_wr, wr.atomic.{field}) - offsetof(struct ibv_send_wr, wr) == {at}, \
             \"wr.atomic.{field}\");"
        );
    }
    let key = std::mem::offset_of!(ibv_wr_remote, compare_add);
    let _ = writeln!(
        c,
        "_Static_assert(offsetof(struct ibv_send_wr, wr.rdma.rkey) - offsetof(struct ibv_send_wr, wr) == {key}, \"rkey\");"
    );
    for (name, value) in CONSTANTS {
        let _ = writeln!(c, "_Static_assert({name} == {value}, \"{name}\");");
    }
    c
}

/// Compiles it; none where there is no compiler or no header.
fn compiles(program: &str) -> Option<Result<(), String>> {
    let folder = std::env::temp_dir().join(format!("overside-ibv-header-{}-{}", std::process::id(), program.len()));
    std::fs::create_dir_all(&folder).ok()?;
    let source = folder.join("layout.c");
    std::fs::write(&source, program).ok()?;
    let compiled = Command::new("cc").arg("-fsyntax-only").arg(&source).output();
    let _ = std::fs::remove_dir_all(&folder);
    let compiled = compiled.ok()?;
    let said = String::from_utf8_lossy(&compiled.stderr).into_owned();
    if said.contains("infiniband/verbs.h: No such file") {
        return None;
    }
    Some(if compiled.status.success() { Ok(()) } else { Err(said) })
}

#[test]
fn our_declarations_are_those_of_the_installed_header() {
    match compiles(&program()) {
        None => eprintln!("skipped: no C compiler, or no infiniband/verbs.h (apt install libibverbs-dev)"),
        Some(checked) => {
            assert_eq!(checked, Ok(()));
            let planted =
                program().replace("offsetof(struct ibv_wc, wc_flags) == ", "offsetof(struct ibv_wc, wc_flags) == 1 + ");
            assert!(compiles(&planted).unwrap().is_err(), "a wrong offset is found");
        }
    }
}
