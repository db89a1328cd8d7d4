//! A model's Jinja chat template, rendered the way Hugging Face's apply_chat_template does.

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind};
use serde_json::Value as Json;

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
        let variables: Json = serde_json::from_slice(variables)
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
    let style = PythonJson { indent, item: &separators[0], key: &separators[1] };
    let json = serde_json::to_value(value)
        .map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    let mut out = String::new();
    style.append(&json, 0, &mut out);
    Ok(Value::from(out))
}

struct PythonJson<'a> {
    indent: Option<usize>,
    item: &'a str, // separators
    key: &'a str,
}

impl PythonJson<'_> {
    fn append(&self, json: &Json, depth: usize, out: &mut String) {
        match json {
            Json::Array(list) => {
                self.append_all('[', list, ']', depth, out, |element, out| {
                    self.append(element, depth + 1, out)
                });
            }
            Json::Object(members) => {
                self.append_all('{', members, '}', depth, out, |(key, member), out| {
                    out.push_str(&Json::from(key.as_str()).to_string());
                    out.push_str(self.key);
                    self.append(member, depth + 1, out)
                });
            }
            scalar => out.push_str(&scalar.to_string()),
        }
    }

    fn append_all<T>(
        &self,
        open: char,
        parts: impl IntoIterator<Item = T>,
        close: char,
        depth: usize,
        out: &mut String,
        append: impl Fn(T, &mut String),
    ) {
        out.push(open);
        let mut is_empty = true;
        for part in parts {
            out.push_str(if is_empty { "" } else { self.item });
            is_empty = false;
            self.break_line(depth + 1, out);
            append(part, out);
        }
        if !is_empty {
            self.break_line(depth, out);
        }
        out.push(close);
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.push_str(&" ".repeat(indent * depth));
        }
    }
}
