//! The C interface of the text layer; `engine/text/rust_text.h` declares the same on the C++ side.
//!
//! Memory never changes hands: inputs are borrowed for the call, results and messages go through a
//! `Sink` that copies them, and a handle is freed by the function that its `create` names. No panic
//! crosses the boundary: it becomes an INTERNAL error.

mod chat_template;
mod tokenizer;

use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};

use chat_template::ChatTemplate;
use tokenizer::Tokenizer;

/// Borrowed bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const u8,
    size: usize,
}

impl Bytes {
    fn of(bytes: &[u8]) -> Self {
        Bytes { data: bytes.as_ptr(), size: bytes.len() }
    }

    /// Safety: the caller of the C interface keeps the bytes alive during the call.
    unsafe fn get<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }
}

/// Where a result goes, or the message of an error: `write` copies, and is called at most once.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sink {
    context: *mut c_void,
    write: extern "C" fn(*mut c_void, Bytes),
}

impl Sink {
    fn write(&self, bytes: &[u8]) {
        (self.write)(self.context, Bytes::of(bytes));
    }
}

/// Formats the present local time as strftime does. `context` outlives the template.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TimeFormatter {
    context: *mut c_void,
    format: extern "C" fn(*mut c_void, Bytes, Sink),
}

// Safety: the C++ side gives a function that any thread may call.
unsafe impl Send for TimeFormatter {}
unsafe impl Sync for TimeFormatter {}

impl TimeFormatter {
    fn format(&self, format: &str) -> String {
        extern "C" fn append(context: *mut c_void, bytes: Bytes) {
            // Safety: `context` is `out` below.
            unsafe { (*context.cast::<Vec<u8>>()).extend_from_slice(bytes.get()) }
        }
        let mut out: Vec<u8> = Vec::new();
        let sink = Sink { context: (&raw mut out).cast(), write: append };
        (self.format)(self.context, Bytes::of(format.as_bytes()), sink);
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// The canonical error codes in use (absl::StatusCode).
#[derive(Clone, Copy)]
pub enum Code {
    InvalidArgument = 3,
    ResourceExhausted = 8,
    Internal = 13,
}

pub struct Error {
    code: Code,
    message: String,
}

impl Error {
    fn invalid(message: impl Into<String>) -> Self {
        Error { code: Code::InvalidArgument, message: message.into() }
    }
}

/// Runs `body`: 0, or the error's code after its message has gone to `sink`.
fn guarded(sink: Sink, body: impl FnOnce() -> Result<(), Error>) -> i32 {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(panic) => {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            Error { code: Code::Internal, message: format!("the text crate panicked: {what}") }
        }
    };
    sink.write(error.message.as_bytes());
    error.code as i32
}

fn checked_utf8<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, Error> {
    std::str::from_utf8(bytes).map_err(|error| {
        let (at, size) = (error.valid_up_to(), bytes.len());
        Error::invalid(format!("{what} is not UTF-8 at byte {at} of {size}"))
    })
}

#[no_mangle]
unsafe extern "C" fn latentd_tokenizer_create(
    json: Bytes,
    out: *mut *mut Tokenizer,
    message: Sink,
) -> i32 {
    guarded(message, || {
        *out = Box::into_raw(Box::new(Tokenizer::new(json.get())?));
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn latentd_tokenizer_free(tokenizer: *mut Tokenizer) {
    drop(Box::from_raw(tokenizer));
}

/// `result` gets the ids as native u32s, in one piece.
#[no_mangle]
unsafe extern "C" fn latentd_tokenizer_encode(
    tokenizer: &Tokenizer,
    text: Bytes,
    add_special: bool,
    parse_special: bool,
    result: Sink,
) -> i32 {
    guarded(result, || {
        let text = checked_utf8(text.get(), "text")?;
        let ids = tokenizer.encode(text, add_special, parse_special)?;
        result.write(std::slice::from_raw_parts(ids.as_ptr().cast(), std::mem::size_of_val(&*ids)));
        Ok(())
    })
}

/// The bytes of one token, valid as long as the tokenizer; none for an id without a token.
#[no_mangle]
unsafe extern "C" fn latentd_tokenizer_token_bytes(
    tokenizer: &Tokenizer,
    id: u32,
    special: &mut bool,
) -> Bytes {
    let (bytes, is_special) = tokenizer.token_bytes(id);
    *special = is_special;
    Bytes::of(bytes)
}

#[no_mangle]
unsafe extern "C" fn latentd_tokenizer_num_ids(tokenizer: &Tokenizer) -> usize {
    tokenizer.num_ids()
}

#[no_mangle]
unsafe extern "C" fn latentd_tokenizer_strips_leading_space(tokenizer: &Tokenizer) -> bool {
    tokenizer.strips_leading_space()
}

#[no_mangle]
unsafe extern "C" fn latentd_chat_template_create(
    source: Bytes,
    time: TimeFormatter,
    out: *mut *mut ChatTemplate,
    message: Sink,
) -> i32 {
    guarded(message, || {
        let source = checked_utf8(source.get(), "chat template")?;
        *out = Box::into_raw(Box::new(ChatTemplate::new(source.to_owned(), time)?));
        Ok(())
    })
}

#[no_mangle]
unsafe extern "C" fn latentd_chat_template_free(template: *mut ChatTemplate) {
    drop(Box::from_raw(template));
}

/// `variables` is a JSON object.
#[no_mangle]
unsafe extern "C" fn latentd_chat_template_render(
    template: &ChatTemplate,
    variables: Bytes,
    result: Sink,
) -> i32 {
    guarded(result, || {
        result.write(template.render(variables.get())?.as_bytes());
        Ok(())
    })
}
