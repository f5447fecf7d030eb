//! Objects of which this data server has one of two copies: the machine of [`cluster::replica::copy`] with sockets, threads and devices.
//!
//! - [`object`] one object: requests in, what is to be done out; [`change`] what is done to its bytes, and [`applying`] doing it here; [`known`] by which view.
//! - [`asked`] what clients and the metadata server ask; [`second`] what the other data server asks; [`peers`] asking that one, and leave to answer.
//! - [`losing`] what is lost at both; [`comparing`] what a second has from before; [`pieces`] how what it lacks is sent, [`room`] of how much at once.
//! - [`registry`] all of them; [`tick`] what is due by itself; [`words`] what the metadata server is told.
//!
//! - I-TWO-1: whatever is asked of such an object names a view. Who is not in the newest that was named here, in this life, answers nothing.
//! - I-TWO-2: bytes are read before it is asked whether they may be shown, and shown only if the view is still the same then.
//! - I-TWO-3: a change that has begun goes on to its end, or to a view in which it is somebody else's, whoever waits for it. Until then the session for
//!   which it is made has something under way here (I-DATA-5).
//! - I-TWO-4: who could not store what the other one has stored leaves the object to that one, and answers nobody meanwhile.
//! - I-TWO-5: who asks by a view of before both copies were lost gets no answer, but that there is another one.
//!
//! What is known of a view is kept as long as the process lives: an older one that comes late must not be taken for the newest. The lock of one object is
//! taken before that of the peers, and nothing is waited for under either.

mod applying;
mod asked;
mod change;
mod comparing;
mod known;
mod losing;
mod object;
mod peers;
mod pieces;
mod registry;
mod room;
mod second;
mod sending;
mod tick;
mod words;

pub(in crate::data) use registry::Registry;
