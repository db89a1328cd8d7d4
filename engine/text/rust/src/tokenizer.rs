//! A tokenizer.json: encoding by the `tokenizers` crate, and the bytes that each token decodes to.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::Value;

use crate::Error;

pub struct Tokenizer {
    parsing: tokenizers::Tokenizer, // control tokens in a text become ids
    plain: OnceLock<tokenizers::Tokenizer>, // they are ordinary text; made at first use
    bytes: Vec<u8>,                 // of all tokens, in the order of their ids
    ends: Vec<u32>,                 // in `bytes`, by id
    special: Vec<bool>,             // by id
    strips_leading_space: bool,
}

impl Tokenizer {
    pub fn new(json: &[u8]) -> Result<Self, Error> {
        let mut parsing = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|error| Error::invalid(format!("tokenizer.json: {error}")))?;
        // Limits of someone's training run; a server has its own.
        parsing.with_padding(None);
        parsing.with_truncation(None).map_err(|error| Error::invalid(error.to_string()))?;

        let decoder = serde_json::to_value(parsing.get_decoder()).unwrap_or(Value::Null);
        let mut decoding = Decoding::default();
        decoding.add(&decoder)?;
        let num_ids = parsing.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        let mut tokenizer = Tokenizer {
            parsing,
            plain: OnceLock::new(),
            bytes: Vec::new(),
            ends: Vec::with_capacity(num_ids),
            special: Vec::with_capacity(num_ids),
            strips_leading_space: decoding.strips_leading_space,
        };
        for id in 0..num_ids as u32 {
            let token = tokenizer.parsing.id_to_token(id).unwrap_or_default();
            decoding.append_bytes(&token, &mut tokenizer.bytes);
            tokenizer.ends.push(tokenizer.bytes.len() as u32);
            let added = tokenizer.parsing.get_added_vocabulary();
            tokenizer.special.push(added.is_special_token(&token));
        }
        Ok(tokenizer)
    }

    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<u32>, Error> {
        let tokenizer = if parse_special { &self.parsing } else { self.plain() };
        let encoding = tokenizer
            .encode_fast(text, add_special)
            .map_err(|error| Error::invalid(format!("text cannot be encoded: {error}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn plain(&self) -> &tokenizers::Tokenizer {
        self.plain.get_or_init(|| {
            let mut plain = self.parsing.clone();
            plain.set_encode_special_tokens(true);
            plain
        })
    }

    /// The bytes of a token and whether it is a control token; nothing for an unknown id.
    pub fn token_bytes(&self, id: u32) -> (&[u8], bool) {
        let id = id as usize;
        if id >= self.ends.len() {
            return (&[], false);
        }
        let begin = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        (&self.bytes[begin..self.ends[id] as usize], self.special[id])
    }

    pub fn num_ids(&self) -> usize {
        self.ends.len()
    }

    pub fn strips_leading_space(&self) -> bool {
        self.strips_leading_space
    }
}

/// What the decoder of a tokenizer.json does to each token, so that a text is its tokens' bytes in a
/// row. The crate's own byte fallback spoils a whole run of bytes when one of them is wrong, which a
/// stream could not show before the run ends.
#[derive(Default)]
struct Decoding {
    replacements: Vec<(String, String)>,
    byte_of: Option<HashMap<char, u8>>, // byte-level: the byte that a character stands for
    byte_fallback: bool,                // <0xHH> is a byte
    strips_leading_space: bool,
}

impl Decoding {
    fn add(&mut self, decoder: &Value) -> Result<(), Error> {
        match decoder["type"].as_str().unwrap_or("none") {
            "Sequence" => {
                for part in decoder["decoders"].as_array().into_iter().flatten() {
                    self.add(part)?;
                }
            }
            "ByteLevel" => self.byte_of = Some(byte_level_alphabet()),
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Strip"
                if decoder["content"] == " " && decoder["start"] == 1 && decoder["stop"] == 0 =>
            {
                self.strips_leading_space = true
            }
            "Replace" if decoder["pattern"]["String"].is_string() => self.replacements.push((
                decoder["pattern"]["String"].as_str().unwrap_or_default().to_owned(),
                decoder["content"].as_str().unwrap_or_default().to_owned(),
            )),
            "Metaspace" => {
                let replacement = decoder["replacement"].as_str().unwrap_or("▁").to_owned();
                self.replacements.push((replacement, " ".to_owned()));
                self.strips_leading_space = decoder["prepend_scheme"] != "never";
            }
            _ => {
                return Err(Error::invalid(format!("decoder of tokenizer.json: {decoder} unknown")))
            }
        }
        Ok(())
    }

    fn append_bytes(&self, token: &str, out: &mut Vec<u8>) {
        if let Some(byte) = self.fallback_byte(token) {
            return out.push(byte);
        }
        let replaced = self.replacements.iter().fold(token.to_owned(), |t, (a, b)| t.replace(a, b));
        let mapped: Option<Vec<u8>> = self
            .byte_of
            .as_ref()
            .and_then(|byte_of| replaced.chars().map(|c| byte_of.get(&c).copied()).collect());
        // An added token is text as it stands when it holds a character outside the alphabet.
        out.extend(mapped.unwrap_or_else(|| replaced.into_bytes()));
    }

    fn fallback_byte(&self, token: &str) -> Option<u8> {
        let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
        let is_byte = self.byte_fallback && digits.len() == 2;
        is_byte.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
    }
}

/// GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 onwards.
fn byte_level_alphabet() -> HashMap<char, u8> {
    let mut next_other = 0x100;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => (char::from(byte), byte),
            _ => {
                next_other += 1;
                (char::from_u32(next_other - 1).unwrap_or_default(), byte)
            }
        })
        .collect()
}
