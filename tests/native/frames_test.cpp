#include "frames.h"

#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "crc32c.h"
#include "wire_bytes.h"

namespace covey::testing {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
constexpr Verify kLevels[] = {Verify::nothing, Verify::lengths, Verify::all};

std::string framed(const std::vector<std::string>& records) {
  Buffer<std::uint8_t> out;
  for (const std::string& record : records) {
    const Exact copy(record);
    append_frame(out, copy.bytes().begin, copy.size());
  }
  return out.size() == 0 ? "" : text({out.data(), out.data() + out.size()});
}

// The header of a frame of `length` bytes, with a valid checksum.
std::string header(std::uint64_t length) {
  std::string bytes(kHeaderBytes, '\0');
  write_header(reinterpret_cast<std::uint8_t*>(bytes.data()), length);
  return bytes;
}

// A scan and its records.
struct Found {
  explicit Found(const std::string& data, Verify verify = Verify::all,
                 std::size_t limit = kNoLimit) {
    const Exact copy(data);
    scan = scan_frames(copy.bytes().begin, copy.size(), limit, verify);
    for (std::size_t i = 0; i < scan.lengths.size(); ++i) {
      records.push_back(data.substr(scan.offsets[i], scan.lengths[i]));
    }
  }

  Scan scan;
  std::vector<std::string> records;
};

TEST(layout_of_a_frame) {
  // The output of TensorFlow's TFRecordWriter for b"covey".
  const unsigned char expected[] = {0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                                    0x00, 0xea, 0xb2, 0x04, 0x3e, 0x63, 0x6f,
                                    0x76, 0x65, 0x79, 0x7e, 0xae, 0x0c, 0xf7};
  CHECK(framed({"covey"}) == std::string(std::begin(expected), std::end(expected)));
}

TEST(round_trip_of_frames) {
  const std::vector<std::string> records = {"", "a", "", std::string(1000, 'x'), "\n", "end"};
  const std::string data = framed(records);
  for (const Verify verify : kLevels) {
    const Found found(data, verify);
    CHECK(found.records == records);
    CHECK(found.scan.consumed == data.size());
    CHECK(found.scan.needed == 0);
    CHECK(!found.scan.fault);
  }
}

TEST(scan_of_empty_data) {
  const Scan scan = scan_frames(nullptr, 0, kNoLimit, Verify::all);
  CHECK(scan.lengths.size() == 0 && scan.consumed == 0 && scan.needed == 0 && !scan.fault);
}

TEST(scan_stops_at_the_limit) {
  const std::string data = framed({"one", "two", "three"});
  for (std::size_t limit = 0; limit <= 4; ++limit) {
    const Found found(data, Verify::all, limit);
    const std::size_t expected = limit < 3 ? limit : 3;
    CHECK(found.records.size() == expected);
    CHECK(found.scan.consumed == expected * (kFrameBytes + 3) + (expected == 3 ? 2 : 0));
    CHECK(found.scan.needed == 0 && !found.scan.fault);
  }
}

TEST(scan_does_not_read_past_the_limit) {
  const std::string data = framed({"one"}) + std::string(40, '\xff');
  CHECK(!Found(data, Verify::all, 1).scan.fault);
  CHECK(Found(data, Verify::all, 2).scan.fault.code == FaultCode::length_checksum);
}

TEST(scan_of_data_truncated_at_any_byte) {
  const std::vector<std::string> records = {"first", "", "the third"};
  const std::string data = framed(records);
  for (const Verify verify : kLevels) {
    for (std::size_t size = 0; size < data.size(); ++size) {
      const Found found(data.substr(0, size), verify);
      std::size_t whole = 0, end = 0;
      while (end + kFrameBytes + records[whole].size() <= size) {
        end += kFrameBytes + records[whole++].size();
      }
      CHECK(found.records.size() == whole);
      CHECK(found.scan.consumed == end);
      CHECK(found.scan.needed ==
            (size - end < kHeaderBytes ? 0 : kFrameBytes + records[whole].size()));
      CHECK(!found.scan.fault);
    }
  }
}

TEST(corruption_of_any_bit_of_a_header) {
  const std::string data = framed({"valid", "corrupt"});
  const std::size_t second = kFrameBytes + 5;
  for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    std::string corrupt = data;
    corrupt[second + bit / 8] ^= static_cast<char>(1 << bit % 8);
    for (const Verify verify : {Verify::lengths, Verify::all}) {
      const Found found(corrupt, verify);
      CHECK(found.records == std::vector<std::string>{"valid"});
      CHECK(found.scan.fault.code == FaultCode::length_checksum);
      CHECK(found.scan.fault.row == 1);
      CHECK(found.scan.fault.offset == second);
      CHECK(found.scan.consumed == second);
      CHECK(found.scan.fault.found != found.scan.fault.expected);
    }
    CHECK(!Found(corrupt, Verify::nothing).scan.fault);
  }
}

TEST(corruption_of_any_bit_of_the_data_or_its_checksum) {
  const std::string data = framed({"valid", "corrupt"});
  const std::size_t second = kFrameBytes + 5;
  for (std::size_t bit = 8 * (second + kHeaderBytes); bit < 8 * data.size(); ++bit) {
    std::string corrupt = data;
    corrupt[bit / 8] ^= static_cast<char>(1 << bit % 8);
    const Found found(corrupt, Verify::all);
    CHECK(found.records == std::vector<std::string>{"valid"});
    CHECK(found.scan.fault.code == FaultCode::data_checksum);
    CHECK(found.scan.fault.row == 1);
    CHECK(found.scan.fault.offset == second);
    CHECK(found.scan.consumed == second);
    for (const Verify verify : {Verify::nothing, Verify::lengths}) {
      CHECK(Found(corrupt, verify).records.size() == 2);
      CHECK(!Found(corrupt, verify).scan.fault);
    }
  }
}

TEST(data_fault_has_both_checksums) {
  std::string data = framed({"data"});
  data[kHeaderBytes] = 'D';
  const Fault fault = Found(data).scan.fault;
  CHECK(fault.found == crc32c(reinterpret_cast<const std::uint8_t*>("Data"), 4));
  CHECK(fault.expected == crc32c(reinterpret_cast<const std::uint8_t*>("data"), 4));
}

TEST(length_near_2_to_the_64_does_not_overflow) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  for (std::uint64_t below = 0; below < 40; ++below) {
    const std::uint64_t length = most - below;
    for (const Verify verify : kLevels) {
      const Found found(header(length) + std::string(64, 'x'), verify);
      CHECK(found.records.empty());
      CHECK(found.scan.consumed == 0);
      CHECK(found.scan.needed == (below < kFrameBytes ? most : length + kFrameBytes));
      CHECK(!found.scan.fault);
    }
  }
}

TEST(length_one_byte_past_the_end) {
  const std::string data = header(8) + std::string(8 + kFooterBytes - 1, 'x');
  const Found found(data, Verify::nothing);
  CHECK(found.records.empty());
  CHECK(found.scan.needed == data.size() + 1);
}

TEST(verify_data_reads_the_footer) {
  const std::string frame = framed({"record"});
  const Exact valid(std::string_view(frame).substr(kHeaderBytes));
  CHECK(!verify_data(valid.bytes().begin, 6));
  Exact corrupt(std::string_view(frame).substr(kHeaderBytes));
  corrupt.data()[9] ^= 1;
  CHECK(verify_data(corrupt.bytes().begin, 6).code == FaultCode::data_checksum);
}

TEST(names_of_faults_are_distinct) {
  std::vector<std::string> names;
  for (int code = 0; code <= static_cast<int>(FaultCode::utf8); ++code) {
    const std::string name = fault_name(static_cast<FaultCode>(code));
    for (const std::string& other : names) CHECK(name != other);
    CHECK(name != "unknown");
    names.push_back(name);
  }
}

TEST(copied_frames_are_in_the_requested_order) {
  const std::vector<std::string> records = {"first", "", std::string(3000, 'x'), "last one"};
  const Exact copy(framed(records));
  const Scan scan = scan_frames(copy.bytes().begin, copy.size(), kNoLimit, Verify::all);
  std::vector<Bytes> places;
  std::vector<std::string> wanted;
  for (const std::size_t i : {2U, 0U, 3U, 1U, 0U, 2U, 2U}) {
    const std::uint8_t* const begin = copy.bytes().begin + scan.offsets[i];
    places.push_back({begin, begin + scan.lengths[i]});
    wanted.push_back(records[i]);
  }
  const Frames frames = copy_frames(places);
  CHECK(text({frames.data.data(), frames.data.data() + frames.data.size()}) == framed(wanted));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::uint8_t* const begin = frames.data.data() + frames.offsets[i];
    CHECK(text({begin, begin + frames.lengths[i]}) == wanted[i]);
  }
  CHECK(copy_frames({}).lengths.size() == 0);
}

}  // namespace
}  // namespace covey::testing
