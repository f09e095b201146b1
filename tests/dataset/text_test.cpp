// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/text.h"

#include <set>

#include "kuafu/base/errors.h"
#include "tests/base/messages.h"
#include "tests/dataset/folder.h"

namespace kuafu {
namespace {

/// Bytes 0, 1, 2, ... so that a window's first token says where it lies.
Corpus counting(int64_t size) {
  Corpus corpus;
  corpus.path = "counting";
  for (int64_t i = 0; i < size; ++i) corpus.bytes.push_back(static_cast<uint8_t>(i));
  corpus.files = {{"counting"}};
  return corpus;
}

TextDataset dataset(int64_t size, int64_t sequence, double validation = 0.1, uint64_t seed = 1) {
  const auto corpus = std::make_shared<Corpus>(counting(size));
  return TextDataset(std::make_shared<ByteRow>(corpus), *corpus, {256, sequence, validation, seed});
}

/// First tokens of samples [first, first + count) of the training stream.
std::vector<int64_t> starts(const TextDataset& data, int64_t first, int64_t count) {
  const Tokens tokens = data.train(first, count);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(tokens.inputs[static_cast<size_t>(i * tokens.sequence)]);
  }
  return out;
}

TEST(TextDataset, TargetsAreTheNextBytes) {
  const TextDataset data = dataset(201, 10);
  const Tokens tokens = data.train(0, 30);
  EXPECT_EQ(tokens.samples, 30);
  EXPECT_EQ(tokens.sequence, 10);
  ASSERT_EQ(tokens.inputs.size(), 300u);
  ASSERT_EQ(tokens.targets.size(), 300u);
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(tokens.targets[i], tokens.inputs[i] + 1);
    if (i % 10 != 0) {
      EXPECT_EQ(tokens.inputs[i], tokens.targets[i - 1]);
    }
  }
}

TEST(TextDataset, AnEpochTakesEveryWindowOnce) {
  const TextDataset data = dataset(220, 10);  // 198 training bytes: 19 windows
  ASSERT_EQ(data.num_train_samples(), 19);
  std::vector<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    orders.push_back(starts(data, 19 * epoch, 19));
    const std::set<int64_t> distinct(orders.back().begin(), orders.back().end());
    EXPECT_EQ(distinct.size(), 19u);
    EXPECT_EQ(*distinct.begin(), 0);
    EXPECT_EQ(*distinct.rbegin(), 180);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST(TextDataset, TheStreamIsAFunctionOfSeedAndPosition) {
  const TextDataset data = dataset(220, 10);
  EXPECT_EQ(data.train(25, 5), dataset(220, 10).train(25, 5));
  EXPECT_NE(starts(data, 0, 19), starts(dataset(220, 10, 0.1, 2), 0, 19));
  const Tokens all = data.train(15, 10);  // across the end of an epoch
  for (int64_t i = 0; i < 10; ++i) {
    const Tokens one = data.train(15 + i, 1);
    EXPECT_TRUE(std::equal(one.inputs.begin(), one.inputs.end(), all.inputs.begin() + i * 10));
  }
}

TEST(TextDataset, TrainingNeverSeesTheTail) {
  const TextDataset data = dataset(200, 7, 0.25);
  const Tokens train = data.train(0, 3 * data.num_train_samples());
  for (const int64_t token : train.targets) EXPECT_LT(token, 150);
  ASSERT_EQ(data.num_validation_samples(), 7);
  const Tokens held_out = data.validation(0, 7);
  std::set<int64_t> seen(held_out.inputs.begin(), held_out.inputs.end());
  EXPECT_EQ(*seen.begin(), 150);
  EXPECT_EQ(seen.size(), 49u);
}

TEST(TextDataset, ValidationIsTheSameForEverySeed) {
  const TextDataset data = dataset(200, 7, 0.25);
  EXPECT_EQ(data.validation(0, 7), dataset(200, 7, 0.25, 99).validation(0, 7));
  EXPECT_EQ(data.validation(7, 3), data.validation(0, 3));
}

TEST(TextDataset, HoldsOutNothingWhereToldSo) {
  const TextDataset data = dataset(11, 10, 0);
  EXPECT_EQ(data.num_train_samples(), 1);
  EXPECT_EQ(data.num_validation_samples(), 0);
  EXPECT_EQ(data.validation(0, 0).samples, 0);
  expect_says(message_of<ConfigError>([&] { data.validation(0, 1); }),
              {"data.validation = 0", "validation_batches = 0"});
}

TEST(TextDataset, OfWikiTextValidatesOnItsOwnPart) {
  const Folder folder;
  folder.write("wiki.train.raw", std::string(41, 'a'));
  folder.write("wiki.valid.raw", std::string(21, 'b'));
  DataPlan data;
  data.kind = "text";
  data.path = folder.path();
  ModelPlan model;
  model.sequence = 10;
  const auto dataset = make_dataset(data, model, 1, "");
  EXPECT_EQ(dataset->num_train_samples(), 4);
  EXPECT_EQ(dataset->num_validation_samples(), 2);
  for (const int64_t token : dataset->train(0, 4).targets) EXPECT_EQ(token, 'a');
  for (const int64_t token : dataset->validation(0, 2).inputs) EXPECT_EQ(token, 'b');
  EXPECT_NE(dataset->describe().find("WikiText with a validation part of its own"),
            std::string::npos);
  data.validation = 0.5;
  expect_says(message_of<ConfigError>([&] { make_dataset(data, model, 1, ""); }),
              {"data.validation = 0.5 has no effect", "WikiText", "leave it out"});
  data.validation = DataPlan{}.validation;
  model.sequence = 21;
  expect_says(message_of<ConfigError>([&] { make_dataset(data, model, 1, ""); }),
              {"the parts for training and validation have 41 and 21 bytes",
               "model.sequence = 21 needs 22 of each", "at most 20"});
}

TEST(TextDataset, SaysHowManyBytesAShortCorpusLacks) {
  expect_says(message_of<ConfigError>([] { dataset(10, 10, 0); }),
              {"\"counting\" is too short", "has 10 bytes", "model.sequence = 10", "needs 11",
               "at most 9"});
  expect_says(message_of<ConfigError>([] { dataset(100, 64); }),
              {"has 100 bytes", "data.validation = 0.1", "needs 650", "at most 9"});
  expect_says(message_of<ConfigError>([] { dataset(1, 1); }), {"has 1 bytes", "needs 20"});
}

// The number of bytes the message asks for is the smallest that works.
TEST(TextDataset, AsksForTheLeastThatIsEnough) {
  for (const double share : {0.0, 0.05, 0.1, 0.5, 0.9}) {
    for (const int64_t sequence : {1, 3, 64}) {
      const std::string message = message_of<ConfigError>([&] { dataset(0, sequence, share); });
      const int64_t least = std::stoll(message.substr(message.find("needs ") + 6));
      EXPECT_NO_THROW(dataset(least, sequence, share)) << message;
      EXPECT_THROW(dataset(least - 1, sequence, share), ConfigError) << message;
    }
  }
}

TEST(MakeDataset, OpensTheDefaultCorpusWhereNoPathIsGiven) {
  const Folder folder;
  folder.write("a.h", std::string(2000, 'a'));
  folder.write("sub/b.h", std::string(2000, 'b'));
  const auto data = make_dataset({}, {}, 1, folder.path());
  EXPECT_EQ(data->vocab(), 256);
  EXPECT_EQ(data->num_train_samples(), 56);
  expect_says(data->describe(), {folder.path(), "2 files", "3.91 KiB", "56 training", "6 valid"});
  DataPlan plan;
  plan.path = folder.write("own.txt", std::string(1000, 'c'));
  EXPECT_EQ(make_dataset(plan, {}, 1, folder.path())->train(0, 1).inputs[0], 'c');
}

TEST(MakeDataset, RefusesVocabulariesTooSmallForBytes) {
  ModelPlan model;
  model.vocab = 255;
  expect_says(message_of<ConfigError>([&] { make_dataset({}, model, 1, "/nowhere"); }),
              {"model.vocab = 255", "at least 256", "nearest: vocab = 256", "\"synthetic\""});
}

TEST(MakeDataset, RefusesUnknownKinds) {
  DataPlan plan;
  plan.kind = "synthetics";
  expect_says(message_of<ConfigError>([&] { make_dataset(plan, {}, 1, ""); }),
              {"data.kind = \"synthetics\"", "nearest: \"synthetic\""});
}

}  // namespace
}  // namespace kuafu
