// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;

/**
 * A publisher in Java of a process context (OTEP 4719) and of thread contexts (OTEP 4947), written from their texts. The library of
 * native.c, whose path is the argument, has the thread-local variable. Prints "TID NUMBER" for each thread and "ready", and then
 * publishes again for each line of standard input.
 */
public class Publisher {
    static native int publish(byte[] payload);

    static native long attach(byte[] record);

    static byte[] join(byte[]... parts) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (byte[] part : parts) out.writeBytes(part);
        return out.toByteArray();
    }

    static byte[] field(int number, byte[] data) {
        int size = data.length;
        byte[] head = size < 128
            ? new byte[] {(byte) (number << 3 | 2), (byte) size}
            : new byte[] {(byte) (number << 3 | 2), (byte) (size | 128), (byte) (size >> 7)};
        return join(head, data);
    }

    static byte[] text(String s) {
        return field(1, s.getBytes(StandardCharsets.UTF_8));
    }

    static byte[] keyValue(int outer, String key, byte[] value) {
        return field(outer, join(field(1, key.getBytes(StandardCharsets.UTF_8)), field(2, value)));
    }

    static void publish() {
        byte[] payload = join(
            field(1, keyValue(1, "service.name", text("java-publisher"))),
            keyValue(2, "threadlocal.schema_version", text("tlsdesc_v1_dev")),
            keyValue(2, "threadlocal.attribute_key_map", field(5, field(1, text("worker")))));
        if (publish(payload) != 0) throw new IllegalStateException("not published");
    }

    static byte[] record(int number) {
        byte[] name = String.format("%02d", number).getBytes(StandardCharsets.UTF_8);
        ByteBuffer b = ByteBuffer.allocate(28 + 2 + name.length).order(ByteOrder.nativeOrder());
        for (int i = 0; i < 16; i++) b.put((byte) (number + 1));
        for (int i = 0; i < 8; i++) b.put((byte) (number + 101));
        b.put((byte) 1).put((byte) 1).putShort((short) (2 + name.length));
        b.put((byte) 0).put((byte) name.length).put(name);
        return b.array();
    }

    public static void main(String[] args) throws Exception {
        System.load(args[0]);
        publish();
        int threads = 3;
        CountDownLatch started = new CountDownLatch(threads);
        for (int i = 0; i < threads; i++) {
            int number = i;
            Thread t = new Thread(() -> {
                long tid = attach(record(number));
                synchronized (System.out) {
                    System.out.println(tid + " " + number);
                }
                started.countDown();
                while (true) LockSupport.park();
            });
            t.setDaemon(true);
            t.start();
        }
        started.await();
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        while (in.readLine() != null) {
            publish();
            System.out.println("done");
        }
    }
}
