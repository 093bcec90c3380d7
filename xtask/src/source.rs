//! Just enough of Rust's grammar to count: which lines hold code, and which of them lie inside
//! `unsafe`.

/// A token, as far as counting needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Mark(u8),
    Literal,
}

/// Counts of a file's lines and items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines with code outside tests: neither empty nor only comment.
    pub code: usize,
    /// Lines that lie inside an `unsafe` block, function or implementation, or in assembly.
    pub unsafe_code: usize,
    /// Items that are declared `pub`, whether or not their module is.
    pub public: usize,
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |mut sum, counts| {
            sum += counts;
            sum
        })
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.unsafe_code += other.unsafe_code;
        self.public += other.public;
    }
}

/// Counts a Rust source file.
pub fn count_rust(source: &str) -> Counts {
    let tokens = tokens(source);
    let lines = source.lines().count() + 1;
    let (mut code, mut unsafe_code, mut test) =
        (vec![false; lines], vec![false; lines], vec![false; lines]);
    for &(line, last, _) in &tokens {
        code[line..=last].fill(true);
    }
    for (index, (line, _, token)) in tokens.iter().enumerate() {
        let region = match token {
            // `unsafe` begins a block, function or implementation; in `#[unsafe(…)]` and
            // `unsafe extern` without body, nothing.
            Token::Word("unsafe") => Some(&mut unsafe_code),
            Token::Word("global_asm" | "naked_asm") => Some(&mut unsafe_code),
            Token::Word("cfg") if is_test_attribute(&tokens[index..]) => Some(&mut test),
            _ => None,
        };
        if let Some(lines) = region
            && let Some(end) = end_of_item(&tokens[index..])
        {
            lines[*line..=end].fill(true);
        }
    }
    let counted = |line: &usize| code[*line] && !test[*line];
    Counts {
        code: (0..lines).filter(counted).count(),
        unsafe_code: (0..lines)
            .filter(counted)
            .filter(|&line| unsafe_code[line])
            .count(),
        public: tokens
            .windows(2)
            .filter(|pair| is_public_item(pair) && !test[pair[0].0])
            .count(),
    }
}

/// Counts an assembly file: all of it is as unsafe as can be.
pub fn count_assembly(source: &str) -> Counts {
    let code = source
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(['#', '/', ';']))
        .count();
    Counts {
        code,
        unsafe_code: code,
        public: 0,
    }
}

/// Modules in files of their own that are only there in tests.
pub fn test_modules(source: &str) -> Vec<&str> {
    let tokens = tokens(source);
    let mut found = Vec::new();
    for (at, (.., token)) in tokens.iter().enumerate() {
        if *token == Token::Word("cfg") && is_test_attribute(&tokens[at..]) {
            // Other attributes may follow. A module with a body has a brace where the others have a
            // semicolon.
            let ends = |(.., token): &(_, _, Token<'_>)| matches!(token, Token::Mark(b'{' | b';'));
            let length = tokens[at..].iter().position(ends).map_or(0, |end| end + 1);
            if let [
                ..,
                (.., Token::Word("mod")),
                (.., Token::Word(name)),
                (.., Token::Mark(b';')),
            ] = &tokens[at..at + length]
            {
                found.push(*name);
            }
        }
    }
    found
}

/// `cfg(test)` and `cfg(all(test, …))`.
fn is_test_attribute(tokens: &[(usize, usize, Token<'_>)]) -> bool {
    let token = |at: usize| tokens.get(at).map(|(.., token)| token);
    let test = if token(2) == Some(&Token::Word("all")) {
        4
    } else {
        2
    };
    let [open, close] = [b'(', b')'].map(Token::Mark);
    token(1) == Some(&open)
        && token(test) == Some(&Token::Word("test"))
        && (test == 2 && token(3) == Some(&close) || test == 4 && token(3) == Some(&open))
}

/// `pub` and the beginning of an item; not of a field, nor `pub(…)`.
fn is_public_item(tokens: &[(usize, usize, Token<'_>)]) -> bool {
    const ITEMS: [&str; 13] = [
        "fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "use",
        "unsafe", "extern", "async",
    ];
    matches!(tokens, [(.., Token::Word("pub")), (.., Token::Word(word)), ..] if ITEMS.contains(word))
}

/// The line where the first block or parenthesised list of the item ends that begins with these
/// tokens; none if it has none.
fn end_of_item(tokens: &[(usize, usize, Token<'_>)]) -> Option<usize> {
    let wants_parentheses = matches!(tokens[0].2, Token::Word("global_asm" | "naked_asm"));
    let mut depth = 0usize;
    let mut started = false;
    let mut nested = 0usize;
    for (at, (_, last, token)) in tokens.iter().enumerate().skip(1) {
        match token {
            // `#[unsafe(no_mangle)]`: an attribute, no item.
            Token::Mark(b'(') if at == 1 && tokens[0].2 == Token::Word("unsafe") => return None,
            Token::Mark(b'{') if !wants_parentheses && nested == 0 => {
                depth += 1;
                started = true;
            }
            Token::Mark(b'}') if !wants_parentheses && nested == 0 => {
                depth = depth.saturating_sub(1);
            }
            Token::Mark(b'(') if wants_parentheses => {
                depth += 1;
                started = true;
            }
            Token::Mark(b')') if wants_parentheses => depth = depth.saturating_sub(1),
            Token::Mark(b'(' | b'[') if !started => nested += 1,
            Token::Mark(b')' | b']') if !started => nested = nested.saturating_sub(1),
            Token::Mark(b';' | b',') if !started && nested == 0 => return None,
            _ => {}
        }
        if started && depth == 0 {
            return Some(*last);
        }
    }
    None
}

/// The tokens with the lines (from 0) where each begins and ends.
fn tokens(source: &str) -> Vec<(usize, usize, Token<'_>)> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        let rest = &source[at..];
        let (length, token) = match byte {
            _ if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), None),
            _ if rest.starts_with("/*") => (block_comment(rest), None),
            b'"' => (string(rest, 0), Some(Token::Literal)),
            b'\'' => match character(rest) {
                Some(length) => (length, Some(Token::Literal)),
                // A lifetime.
                None => (1, None),
            },
            _ if byte == b'_' || byte.is_ascii_alphabetic() || byte >= 0x80 => {
                let length = rest
                    .find(|c: char| !(c == '_' || c.is_alphanumeric()))
                    .unwrap_or(rest.len());
                match (&rest[..length], bytes.get(at + length)) {
                    ("r" | "br" | "cr", Some(b'"' | b'#'))
                        if raw_string(&rest[length..]).is_some() =>
                    {
                        (
                            length + raw_string(&rest[length..]).unwrap_or(0),
                            Some(Token::Literal),
                        )
                    }
                    ("b" | "c", Some(b'"')) => (string(rest, 1), Some(Token::Literal)),
                    (word, _) => (length, Some(Token::Word(word))),
                }
            }
            _ if byte.is_ascii_digit() => {
                let length = rest
                    .find(|c: char| !(c == '_' || c.is_alphanumeric()))
                    .unwrap_or(rest.len());
                (length, Some(Token::Literal))
            }
            _ if byte.is_ascii_whitespace() => (1, None),
            _ => (1, Some(Token::Mark(byte))),
        };
        let last = line
            + bytes[at..at + length]
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count();
        if let Some(token) = token {
            tokens.push((line, last, token));
        }
        (at, line) = (at + length, last);
    }
    tokens
}

/// The length of a block comment, in which others may be nested.
fn block_comment(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (2, 1);
    while depth > 0 && at < bytes.len() {
        match bytes.get(at..at + 2) {
            Some(b"/*") => (at, depth) = (at + 2, depth + 1),
            Some(b"*/") => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    at.min(bytes.len())
}

/// The length of a string literal with escapes whose quote is at `start`.
fn string(text: &str, start: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The length of what follows a raw string's `r`, if it is one.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.bytes().take_while(|&byte| byte == b'#').count();
    let body = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(hashes + 1 + body.find(&end)? + end.len())
}

/// The length of a character literal, or none if this is a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut characters = text.char_indices().skip(1);
    match characters.next()?.1 {
        '\\' => {
            characters.next()?;
            text[3..].find('\'').map(|end| end + 4)
        }
        _ => characters
            .next()
            .filter(|&(_, c)| c == '\'')
            .map(|(at, _)| at + 1),
    }
}

/// Names that a module declares for others.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Interface<'a> {
    /// Types and traits declared `pub`.
    pub types: Vec<&'a str>,
    /// Functions declared `pub` that belong to no type.
    pub functions: Vec<&'a str>,
    /// Functions declared `pub` of types, each with the type's name.
    pub methods: Vec<(&'a str, &'a str)>,
    /// Modules below, in files of their own, and whether they are `pub`.
    pub modules: Vec<(&'a str, bool)>,
    /// Names that `pub use` gives out.
    pub exported: Vec<&'a str>,
}

/// Reads a module's declarations, those of its test modules among them.
pub fn interface(source: &str) -> Interface<'_> {
    let tokens: Vec<Token<'_>> = tokens(source).into_iter().map(|t| t.2).collect();
    let mut found = Interface::default();
    let (mut depth, mut of) = (0usize, None);
    for (at, token) in tokens.iter().enumerate() {
        let next = |n: usize| tokens.get(at + n);
        match token {
            Token::Mark(b'{') => depth += 1,
            Token::Mark(b'}') => {
                depth = depth.saturating_sub(1);
                of = of.filter(|_| depth > 0);
            }
            Token::Word("impl") if depth == 0 => of = implemented(&tokens[at + 1..]),
            Token::Word("mod") if depth == 0 && next(2) == Some(&Token::Mark(b';')) => {
                let public = at > 0 && tokens[at - 1] == Token::Word("pub");
                if let Some(Token::Word(name)) = next(1) {
                    found.modules.push((name, public));
                }
            }
            Token::Word("pub") => {
                let item = tokens[at + 1..].iter();
                let mut item = item.skip_while(|token| {
                    matches!(
                        token,
                        Token::Literal | Token::Word("const" | "unsafe" | "async" | "extern")
                    )
                });
                let (Some(kind), Some(Token::Word(name))) = (item.next(), item.next()) else {
                    continue;
                };
                match (kind, depth, of) {
                    (Token::Word("fn"), 0, _) => found.functions.push(name),
                    (Token::Word("fn"), 1, Some(of)) => found.methods.push((of, name)),
                    (Token::Word("struct" | "enum" | "union" | "trait"), 0, _) => {
                        found.types.push(name);
                    }
                    (Token::Word("use"), 0, _) => {
                        found.exported.extend(given_out(&tokens[at + 2..]));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    found
}

/// The type of which these tokens, which follow `impl`, implement functions; none if it is a trait
/// that they implement.
fn implemented<'a>(tokens: &[Token<'a>]) -> Option<&'a str> {
    let (mut angles, mut name) = (0usize, None);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark(b'<') => angles += 1,
            // Not of an arrow.
            Token::Mark(b'>') if at == 0 || tokens[at - 1] != Token::Mark(b'-') => {
                angles = angles.saturating_sub(1);
            }
            Token::Word("for") if angles == 0 => return None,
            Token::Word("where") | Token::Mark(b'{') if angles == 0 => return name,
            Token::Word(word) if angles == 0 => name = Some(*word),
            _ => {}
        }
    }
    None
}

/// The names that a `use` gives out whose path and list these tokens begin with.
fn given_out<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let end = tokens.iter().position(|token| *token == Token::Mark(b';'));
    let tokens = &tokens[..end.unwrap_or(tokens.len())];
    let mut names = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match (token, tokens.get(at + 1)) {
            (Token::Word(_), Some(Token::Mark(b':') | Token::Word("as"))) => {}
            (Token::Word("as"), _) => {}
            (Token::Word(name), _) => names.push(*name),
            _ => {}
        }
    }
    names
}

/// The words of a Rust source outside comments and literals.
pub fn code_words(source: &str) -> impl Iterator<Item = &str> {
    tokens(source).into_iter().filter_map(|(_, _, token)| {
        if let Token::Word(word) = token {
            Some(word)
        } else {
            None
        }
    })
}

/// The words of a text that could be identifiers.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    words.filter(|word| word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_'))
}

/// The first name of each path that begins with `crate::`, with its line (from 1); of a list in
/// braces that of each entry.
pub fn crate_paths(source: &str) -> Vec<(usize, &str)> {
    let tokens = tokens(source);
    let mut found = Vec::new();
    for (at, window) in tokens.windows(4).enumerate() {
        let [
            (line, _, Token::Word("crate")),
            (_, _, Token::Mark(b':')),
            (_, _, Token::Mark(b':')),
            (_, _, first),
        ] = window
        else {
            continue;
        };
        match first {
            Token::Word(name) => found.push((line + 1, *name)),
            Token::Mark(b'{') => found.extend(first_names(&tokens[at + 3..])),
            _ => {}
        }
    }
    found
}

/// The first name of each entry of a list in braces, with which these tokens begin.
fn first_names<'a>(tokens: &[(usize, usize, Token<'a>)]) -> Vec<(usize, &'a str)> {
    let mut names = Vec::new();
    let mut depth = 0usize;
    let mut begins = false;
    for (line, _, token) in tokens {
        match token {
            Token::Mark(b'{') => {
                depth += 1;
                begins = depth == 1;
            }
            Token::Mark(b'}') => depth -= 1,
            Token::Mark(b',') if depth == 1 => begins = true,
            Token::Word(name) if begins => {
                names.push((line + 1, *name));
                begins = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(source: &str) -> (usize, usize) {
        let counts = count_rust(source);
        (counts.code, counts.unsafe_code)
    }

    #[test]
    fn comments_and_empty_lines_are_no_code() {
        assert_eq!(
            counts("// unsafe {\n\n/* a /* nested */\n */ fn f() {}\n//! x\n"),
            (1, 0)
        );
    }

    #[test]
    fn blocks_functions_and_implementations_are_unsafe() {
        assert_eq!(
            counts("fn f() {\n    unsafe {\n        g();\n    }\n}\n"),
            (5, 3)
        );
        assert_eq!(
            counts("unsafe fn f(a: [u8; 2])\n    -> u8\n{\n    1\n}\nfn g() {}\n"),
            (6, 5)
        );
        assert_eq!(
            counts("// SAFETY: none\nunsafe impl Send for S {}\nstruct S;\n"),
            (2, 1)
        );
    }

    #[test]
    fn attributes_and_declarations_are_not() {
        assert_eq!(counts("#[unsafe(no_mangle)]\nfn f() {\n}\n"), (3, 0));
        assert_eq!(
            counts("trait T {\n    unsafe fn f();\n}\nfn g() {}\n"),
            (4, 0)
        );
    }

    #[test]
    fn literals_hide_nothing_and_show_nothing() {
        assert_eq!(
            counts(
                "const A: &str = \"unsafe {\";\nconst B: char = '{';\nconst C: &str = r#\"\nunsafe { \"\n\"#;\n"
            ),
            (5, 0)
        );
        assert_eq!(
            counts("fn f<'a>(x: &'a u8) -> char {\n    '\\''\n}\n"),
            (3, 0)
        );
        assert_eq!(
            counts("fn f() { let c = '\\u{7f}'; unsafe { g(c) } }\n"),
            (1, 1)
        );
    }

    #[test]
    fn assembly_is_unsafe() {
        assert_eq!(
            counts("core::arch::global_asm!(\n    \"nop\",\n);\nfn f() {}\n"),
            (4, 3)
        );
        assert_eq!(
            count_assembly("# comment\n\n  nop\n"),
            Counts {
                code: 1,
                unsafe_code: 1,
                public: 0
            }
        );
    }

    #[test]
    fn tests_are_not_counted() {
        assert_eq!(
            counts("fn f() {}\n#[cfg(test)]\nmod tests {\n    unsafe fn x() {}\n}\n"),
            (1, 0)
        );
        assert_eq!(
            counts(
                "#[cfg(all(test, not(loom)))]\nmod tests {\n    unsafe fn x() {}\n}\nfn f() {}\n"
            ),
            (1, 0)
        );
        assert_eq!(
            counts("#[cfg(all(loom, test2))]\nmod a {\n    unsafe fn x() {}\n}\n"),
            (4, 1)
        );
    }

    #[test]
    fn modules_of_tests_are_found() {
        let source = "#[cfg(test)]\nmod tests;\n#[cfg(all(test, loom))]\n#[path = \"m.rs\"]\nmod model;\nmod other;\n\
                      #[cfg(test)]\nmod inline { mod not; }\n#[cfg(loom)]\nmod sync;\n";
        assert_eq!(test_modules(source), ["tests", "model"]);
    }

    #[test]
    fn public_items_are_counted() {
        let public = |source: &str| count_rust(source).public;
        assert_eq!(
            public("pub fn f() {}\npub(crate) fn g() {}\nfn h() {}\npub unsafe fn i() {}\n"),
            2
        );
        assert_eq!(
            public("pub struct S {\n    pub field: u8,\n}\npub use a::b;\npub const C: u8 = 1;\n"),
            3
        );
        assert_eq!(
            public(
                "// pub fn f\nconst T: &str = \"pub fn f\";\n#[cfg(test)]\nmod tests {\n    pub fn f() {}\n}\n"
            ),
            0
        );
    }
}
