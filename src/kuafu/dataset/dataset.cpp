// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/dataset.h"

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/dataset/synthetic.h"
#include "kuafu/dataset/text.h"

namespace kuafu {

std::unique_ptr<Dataset> make_dataset(const DataPlan& data, const ModelPlan& model, uint64_t seed,
                                      const std::string& default_path) {
  if (data.kind == "synthetic") {
    return std::make_unique<SyntheticDataset>(
        SyntheticDataset::Options{model.vocab, model.sequence, seed});
  }
  KUAFU_REQUIRE(data.kind == "text", "data.kind = ", in_quotes(data.kind),
                " is not allowed; allowed: \"text\" or \"synthetic\"; nearest: ",
                in_quotes(nearest(data.kind, {"text", "synthetic"})));
  // Before the corpus is read: it may be large.
  KUAFU_REQUIRE(model.vocab >= 256, "model.vocab = ", model.vocab,
                " is too small for data.kind = \"text\", one token a byte; allowed: at least 256; ",
                "nearest: vocab = 256, or data.kind = \"synthetic\"");
  return std::make_unique<TextDataset>(
      read_corpus(data.path.empty() ? default_path : data.path),
      TextDataset::Options{model.vocab, model.sequence, data.validation, seed});
}

}  // namespace kuafu
