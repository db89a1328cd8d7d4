//! A model's Jinja chat template, rendered the way Hugging Face's apply_chat_template does.

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::{Code, Error, TimeFormatter};

/// Instructions that one rendering may take; a long conversation needs a few hundred a message.
const FUEL: u64 = 10_000_000;
/// Bytes that one rendering may give.
const MAX_OUTPUT: usize = 64 << 20;
const NAME: &str = "chat";

pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    pub fn new(source: String, time: TimeFormatter) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: &str| time.format(format));
        environment.add_template_owned(NAME, source).map_err(describe)?;
        Ok(ChatTemplate { environment })
    }

    pub fn render(&self, variables: &[u8]) -> Result<String, Error> {
        let variables: serde_json::Value = serde_json::from_slice(variables)
            .map_err(|error| Error::invalid(format!("variables of the chat template: {error}")))?;
        let template = self.environment.get_template(NAME).map_err(describe)?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(variables, &mut out).map_err(describe)?;
        Ok(String::from_utf8_lossy(&out.0).into_owned())
    }
}

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

fn describe(error: minijinja::Error) -> Error {
    let code = match error.kind() {
        ErrorKind::OutOfFuel | ErrorKind::WriteFailure => Code::ResourceExhausted,
        _ => Code::InvalidArgument,
    };
    let limit = match error.kind() {
        ErrorKind::OutOfFuel => format!(" (more than {FUEL} instructions)"),
        ErrorKind::WriteFailure => format!(" (more than {MAX_OUTPUT} bytes of output)"),
        _ => String::new(),
    };
    Error { code, message: format!("chat template: {error}{limit}") }
}

/// A writer that takes MAX_OUTPUT bytes.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Python's json.dumps(value, ensure_ascii=False, indent=..., separators=...): a space after commas
/// and colons, and nothing escaped for HTML.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    if ensure_ascii == Some(true) || separators.as_ref().is_some_and(|s| s.len() != 2) {
        let message = "tojson: ensure_ascii=true, or separators that are not two";
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, message));
    }
    let default_item = if indent.is_some() { "," } else { ", " };
    let separators = separators.unwrap_or(vec![default_item.to_owned(), ": ".to_owned()]);
    let [item, key] = [separators[0].clone(), separators[1].clone()];
    let mut out = Vec::new();
    let format = PythonJson { indent, item, key, depth: 0, is_empty: true };
    value
        .serialize(&mut Serializer::with_formatter(&mut out, format))
        .map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from(String::from_utf8_lossy(&out).into_owned()))
}

struct PythonJson {
    indent: Option<usize>,
    item: String,
    key: String,
    depth: usize,
    is_empty: bool, // the innermost array or object, so far
}

impl PythonJson {
    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.break_line(writer)?;
        }
        self.is_empty = false;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.is_empty = false;
        self.break_line(writer)
    }

    fn break_line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(writer, "\n{:width$}", "", width = indent * self.depth),
            None => Ok(()),
        }
    }
}

impl Formatter for PythonJson {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next(w, first)
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }
    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next(w, first)
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }
}
