//! Steps over JSON text without making values of it, as strictly as a decoder would.

/// The text is not JSON here, or not of a form that this scanner reads; the reader in Python decides.
#[derive(Debug, PartialEq)]
pub struct Bad;

/// What a string contains besides plain ASCII.
#[derive(Clone, Copy, Default)]
pub struct Contents {
    pub escapes: bool,
    pub beyond_ascii: bool,
}

/// Deepest nesting that is stepped over.
const DEEPEST: usize = 64;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Mark the bytes of `word` that end a run of plain text: quotes, backslashes and control characters.
///
/// The lowest mark is exact; a higher one may be the carry of a lower one.
#[inline(always)]
fn special(word: u64) -> u64 {
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    ((quote.wrapping_sub(ONES) & !quote) | (backslash.wrapping_sub(ONES) & !backslash) | control) & HIGHS
}

/// Return the position of the first byte at or after `at` that is no blank, or the length of the text.
#[inline(always)]
pub fn blank(text: &[u8], mut at: usize) -> usize {
    while at < text.len() && matches!(text[at], b' ' | b'\n' | b'\t' | b'\r') {
        at += 1;
    }
    at
}

/// Return the position of the quote that closes the string whose first character is at `at`, and its contents.
#[inline(always)]
pub fn string(text: &[u8], mut at: usize) -> Result<(usize, Contents), Bad> {
    let mut contents = Contents::default();
    loop {
        while let Some(bytes) = text.get(at..at + 8) {
            let word = u64::from_le_bytes(bytes.try_into().map_err(|_| Bad)?);
            let marks = special(word);
            if marks == 0 {
                contents.beyond_ascii |= word & HIGHS != 0;
                at += 8;
                continue;
            }
            let plain = marks.trailing_zeros() / 8;
            contents.beyond_ascii |= word & HIGHS & !(u64::MAX << (8 * plain)) != 0;
            at += plain as usize;
            break;
        }
        match text.get(at) {
            Some(b'"') => return Ok((at, contents)),
            Some(b'\\') => {
                contents.escapes = true;
                match text.get(at + 1) {
                    Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
                    Some(b'u') => {
                        let digits = text.get(at + 2..at + 6).ok_or(Bad)?;
                        let surrogate = matches!(digits[0], b'd' | b'D') && !(b'0'..=b'7').contains(&digits[1]);
                        if surrogate || !digits.iter().all(u8::is_ascii_hexdigit) {
                            return Err(Bad);
                        }
                        at += 6;
                    }
                    _ => return Err(Bad),
                }
            }
            Some(byte) if *byte >= 0x20 => {
                contents.beyond_ascii |= *byte >= 0x80;
                at += 1;
            }
            _ => return Err(Bad),
        }
    }
}

/// Return the position after the digits that begin at `at`; there is at least one.
#[inline(always)]
fn digits(text: &[u8], at: usize) -> Result<usize, Bad> {
    match text.get(at..).ok_or(Bad)?.iter().take_while(|byte| byte.is_ascii_digit()).count() {
        0 => Err(Bad),
        count => Ok(at + count),
    }
}

/// Return the position after the number at `at`.
#[inline(always)]
fn number(text: &[u8], mut at: usize) -> Result<usize, Bad> {
    if text.get(at) == Some(&b'-') {
        at += 1;
    }
    at = if text.get(at) == Some(&b'0') { at + 1 } else { digits(text, at)? };
    if text.get(at) == Some(&b'.') {
        at = digits(text, at + 1)?;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        at += 1;
        if matches!(text.get(at), Some(b'+' | b'-')) {
            at += 1;
        }
        at = digits(text, at)?;
    }
    Ok(at)
}

/// Return the position after the value at `at`, which is no blank.
#[inline(always)]
pub fn value(text: &[u8], at: usize) -> Result<usize, Bad> {
    match text.get(at) {
        Some(b'"') => {
            let (end, contents) = string(text, at + 1)?;
            if contents.beyond_ascii && std::str::from_utf8(&text[at..end]).is_err() {
                return Err(Bad);
            }
            Ok(end + 1)
        }
        Some(b'{' | b'[') => nested(text, at, 0),
        Some(b't') => word(text, at, b"true"),
        Some(b'f') => word(text, at, b"false"),
        Some(b'n') => word(text, at, b"null"),
        Some(_) => number(text, at),
        None => Err(Bad),
    }
}

fn word(text: &[u8], at: usize, expected: &[u8]) -> Result<usize, Bad> {
    if text[at..].starts_with(expected) {
        Ok(at + expected.len())
    } else {
        Err(Bad)
    }
}

fn nested(text: &[u8], at: usize, depth: usize) -> Result<usize, Bad> {
    if depth == DEEPEST {
        return Err(Bad);
    }
    let object = text[at] == b'{';
    let close = if object { b'}' } else { b']' };
    let mut at = blank(text, at + 1);
    if text.get(at) == Some(&close) {
        return Ok(at + 1);
    }
    loop {
        if object {
            at = key(text, at)?.1;
        }
        at = match text.get(at) {
            Some(b'{' | b'[') => nested(text, at, depth + 1)?,
            _ => value(text, at)?,
        };
        match more(text, at, close)? {
            (after, true) => at = after,
            (after, false) => return Ok(after),
        }
    }
}

/// Step over the key at `at` and its colon: return where the key's last quote is, and where its value begins.
#[inline(always)]
pub fn key(text: &[u8], at: usize) -> Result<(usize, usize), Bad> {
    if text.get(at) != Some(&b'"') {
        return Err(Bad);
    }
    let (end, contents) = string(text, at + 1)?;
    let colon = blank(text, end + 1);
    if contents.escapes || contents.beyond_ascii || text.get(colon) != Some(&b':') {
        return Err(Bad);
    }
    Ok((end, blank(text, colon + 1)))
}

/// Step over a comma (`true`: another member follows) or the bracket `close`; return the position of what comes next.
#[inline(always)]
pub fn more(text: &[u8], at: usize, close: u8) -> Result<(usize, bool), Bad> {
    let at = blank(text, at);
    match text.get(at) {
        Some(b',') => Ok((blank(text, at + 1), true)),
        Some(byte) if *byte == close => Ok((at + 1, false)),
        _ => Err(Bad),
    }
}

/// Return the value of a text that is a whole number of at most 18 digits.
#[inline(always)]
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut number: i64 = 0;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + digit as i64;
    }
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_they_end() {
        for text in ["1", "-0.5e+7", "\"a\\\"b\"", "[]", "{\"a\":[1,{\"b\":null}], \"c\": \"\\u00e4\"}", "true"] {
            let padded = format!("{},", text);
            assert_eq!(value(padded.as_bytes(), 0), Ok(text.len()), "{}", text);
        }
    }

    #[test]
    fn what_is_no_json_is_bad() {
        for text in ["01x", "-", "1.", "1e", "nan", "tru", "[1,]", "{\"a\"}", "{\"a\":}", "\"a", "\"\\x\"", "\"\\ud83d\"", "\"\n\"", "[1 2]"] {
            let padded = format!("{}\n", text);
            let end = value(padded.as_bytes(), 0);
            assert!(end.is_err() || end != Ok(text.len()), "{}", text);
        }
    }

    #[test]
    fn special_bytes_are_found_at_every_place() {
        for place in 0..20 {
            for byte in [b'"', b'\\', 0x1f, 0x00] {
                let mut text = vec![b'a'; 20];
                text[place] = byte;
                text.push(b'"');
                match byte {
                    b'"' => assert_eq!(string(&text, 0).map(|found| found.0), Ok(place)),
                    _ => assert!(string(&text, 0).is_err()),
                }
            }
        }
    }

    #[test]
    fn deep_nesting_is_left_to_python() {
        let text = "[".repeat(DEEPEST + 1) + &"]".repeat(DEEPEST + 1);
        assert_eq!(value(text.as_bytes(), 0), Err(Bad));
    }
}
