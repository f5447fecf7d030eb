//! What the implementations of [`crate::Request`] of many messages have in common.

/// Those of servers and of who watches: nobody has to be known, and who is asked carries it out.
macro_rules! requests_of_anybody {
    ($($request:ident -> $answer:ty, |$it:ident| $check:expr;)*) => {
        $(impl $crate::Request for $request {
            const METHOD: $crate::Method = $crate::Method::$request;
            type Answer = $answer;

            fn head(&self) -> Option<&$crate::Head> {
                None
            }

            fn check(&self) -> Result<(), $crate::Bad> {
                let $it = self;
                $check
            }
        })*
    };
}

/// Those of a session about one inode, which the owner of its slot carries out.
macro_rules! requests_of_an_inode {
    ($($request:ident -> $answer:ty, $of:ident;)*) => {
        $(impl $crate::Request for $request {
            const METHOD: $crate::Method = $crate::Method::$request;
            type Answer = $answer;

            fn head(&self) -> Option<&$crate::Head> {
                self.head.as_ref()
            }

            fn check(&self) -> Result<(), $crate::Bad> {
                $crate::metadata::known(self.head())?;
                $crate::metadata::inode(self.$of)
            }

            fn homes(&self, visit: &mut dyn FnMut(u64)) {
                visit(self.$of);
            }
        })*
    };
}
