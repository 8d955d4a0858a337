"""Both ends of pyarrow's Flight: `serve ADDRESS ROWS`, `scan ADDRESS ROWS`."""

import json
import sys
import threading
import time

import numpy
import pyarrow.flight as flight


def batches(address, rows):
    client = flight.connect(f"grpc://{address}")
    reader = client.do_get(flight.Ticket(rows.encode()))
    while True:
        try:
            yield reader.read_chunk().data
        except StopIteration:
            return


class Prebuilt(flight.FlightServerBase):
    def __init__(self, source, rows):
        super().__init__("grpc://127.0.0.1:0")
        self.batches = list(batches(source, rows))

    def do_get(self, context, ticket):
        # A stream that C++ drives without calling back into Python.
        import pyarrow

        return flight.RecordBatchStream(pyarrow.RecordBatchReader.from_batches(self.batches[0].schema, self.batches))


def touch(batch):
    """A byte of each cache line of each buffer; how many bytes the buffers have."""
    total = length = 0
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None and len(buffer) > 0:
                total += int(numpy.frombuffer(buffer, dtype=numpy.uint8)[::64].sum(dtype=numpy.uint64))
                length += len(buffer)
    return total, length


def serve(source, rows):
    server = Prebuilt(source, rows)
    print(f"127.0.0.1:{server.port}", flush=True)
    threading.Thread(target=server.serve, daemon=True).start()
    sys.stdin.read()


def scan(address, rows):
    print("ready", flush=True)
    client = flight.connect(f"grpc://{address}")
    for line in sys.stdin:
        least = float(line)
        scans = counted = length = 0
        cpu, start = time.process_time_ns(), time.perf_counter()
        while scans == 0 or time.perf_counter() - start < least:
            reader = client.do_get(flight.Ticket(rows.encode()))
            while True:
                try:
                    batch = reader.read_chunk().data
                except StopIteration:
                    break
                counted += batch.num_rows
                length += touch(batch)[1]
            scans += 1
        seconds = time.perf_counter() - start
        used = time.process_time_ns() - cpu
        said = {"scans": scans, "rows": counted, "bytes": length, "seconds": seconds, "cpu_ns": used}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    {"serve": serve, "scan": scan}[sys.argv[1]](sys.argv[2], sys.argv[3])
