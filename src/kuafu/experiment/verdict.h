// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/record/json.h"

namespace kuafu {

/// What a document's certificate says: "equal", "different", "not_run"; empty where it has none.
std::string verdict_of(const Json& document);

/// The run ended well, or without a finite loss, and its certificate refutes it: its numbers are of a
/// wrong result.
bool is_different(const Json& document);

/// What a reader sees of how a case of a record ended: its status, "different" in place of the "ok" of
/// one that its certificate refutes.
std::string status_words(const std::string& status, const Json& document);

/// What a reader sees of a certificate: "equal", "equal (scaled)" where a smaller model stood for this one, "not
/// run"; "-" where there is none.
std::string verdict_words(const Json& document);
/// Whether the reference is the same engine on one rank, since nobody brought an oracle for the model.
bool is_by_engine(const Json& document);

/// The run ended well and whatever certified it did not: its numbers stand, without a proof.
bool is_cut_short(const Json& document);
/// Whether the time-out cut it short: with more time there would be one.
bool is_late_certificate(const Json& document);
/// Such a document with how its process ended, where it does not say why already.
Json with_end(Json document, const std::string& how);

/// Whether two runs of a plan compute the same bits: kernels are chosen by the processor, so only on the
/// same one, in the same world, with the same LibTorch.
bool has_same_arithmetic(const Json& a, const Json& b);

/// Why the certificate says what it says, where it says so: the reason it was not run for, or the
/// errors that are too large. Empty for `equal`.
std::string why_of_verdict(const Json& document);

}  // namespace kuafu
