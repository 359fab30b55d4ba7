//! What is compiled for tests only: what bears `#[test]`, or a `#[cfg(...)]` that can't hold without
//! `test`.

use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Whether this piece of code is compiled for tests only, by the attributes in front of it.
pub fn is(code: &impl ToTokens) -> bool {
    // The attributes lie elsewhere in each of the many kinds of code, but all are written in front.
    let attributes = |input: ParseStream<'_>| {
        let attributes = input.call(Attribute::parse_outer)?;
        input.parse::<proc_macro2::TokenStream>()?;
        Ok(attributes)
    };
    let attributes = attributes.parse2(code.to_token_stream());
    attributes.is_ok_and(|attributes| bears(&attributes))
}

/// Whether what bears these attributes is compiled for tests only.
pub fn bears(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => list
            .parse_args()
            .is_ok_and(|condition| needs_test(&condition)),
        _ => false,
    })
}

fn needs_test(condition: &Meta) -> bool {
    let Meta::List(list) = condition else {
        return condition.path().is_ident("test");
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    let parts = parts.unwrap_or_default();
    if list.path.is_ident("all") {
        parts.iter().any(needs_test)
    } else {
        list.path.is_ident("any") && !parts.is_empty() && parts.iter().all(needs_test)
    }
}
