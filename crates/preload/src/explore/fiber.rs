//! A stack of its own for a section, which is left where it stands, without unwinding:
//! millions of sections are.

use std::cell::UnsafeCell;

use libc::{getcontext, makecontext, setcontext, swapcontext, ucontext_t};

struct Fiber {
    stack: Vec<u128>,
    home: Box<ucontext_t>,
    away: Box<ucontext_t>,
    job: Option<*mut dyn FnMut()>,
}

thread_local! {
    static FIBER: UnsafeCell<Fiber> = UnsafeCell::new(Fiber {
        stack: vec![0; STACK / 16],
        // SAFETY: plain data, filled by `getcontext`.
        home: Box::new(unsafe { std::mem::zeroed() }),
        // SAFETY: as above.
        away: Box::new(unsafe { std::mem::zeroed() }),
        job: None,
    });
}

fn fiber() -> *mut Fiber {
    FIBER.with(UnsafeCell::get)
}

/// Runs it until it returns, or leaves. What it has on its stack then is forgotten.
pub(super) fn enter(job: &mut dyn FnMut()) {
    let fiber = fiber();
    // SAFETY: this thread's own, and one section at a time; `job` lives as long as this call, in which alone it is run.
    unsafe {
        (*fiber).job = Some(std::mem::transmute::<*mut (dyn FnMut() + '_), *mut (dyn FnMut() + 'static)>(job));
        let (home, away): (*mut ucontext_t, *mut ucontext_t) = (&raw mut *(*fiber).home, &raw mut *(*fiber).away);
        assert_eq!(getcontext(away), 0);
        (*away).uc_stack.ss_sp = (*fiber).stack.as_mut_ptr().cast();
        (*away).uc_stack.ss_size = STACK;
        (*away).uc_link = home;
        makecontext(away, begin, 0);
        assert_eq!(swapcontext(home, away), 0);
    }
}

extern "C" fn begin() {
    // SAFETY: set by `enter`, which waits.
    if let Some(job) = unsafe { (*fiber()).job.take() } {
        // SAFETY: as above.
        unsafe { (*job)() };
    }
}

/// Back to where it was entered.
pub(super) fn leave() -> ! {
    // SAFETY: within `enter`, which waits.
    unsafe { setcontext(&raw const *(*fiber()).home) };
    unreachable!("a context that `swapcontext` has filled");
}

const STACK: usize = 512 << 10;
